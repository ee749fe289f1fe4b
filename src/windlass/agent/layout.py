"""Names of the files that a node of an attempt leaves behind: the one place where writer and readers agree.

Standard library only: this module runs in the user's interpreter too.
"""

import re

PLAN = "plan.json"  # what the supervisor was told to do; no secrets in it
LOCK = "supervisor.lock"  # held (flock) by the supervisor as long as it lives
STATUS = "status.json"  # supervisor and rank pids, rewritten when they change
STOP = "stop.json"  # the wish to stop, written before the signal: kind (cancelled, preempted), reason, grace_s
DRAFT = ".artifact-"  # in the output folder: how names begin of what is only being copied there
OUTCOME = "outcome.json"  # the end; written once, synced, renamed into place
USAGE = "usage.json"  # the newest resource sample
ENVIRONMENT = "environment.json"  # interpreter, packages, host, devices
NOTICE = "notice.json"  # the node will be taken away: message, deadline
SUPERVISOR_LOG = "supervisor.log"
NODE_LOGS = (SUPERVISOR_LOG,)  # of the node itself; the rest are its ranks'

_RANK_LOG = re.compile(r"^rank-(\d+)\.log$")
_METRICS = re.compile(r"^metrics-(\d+)\.jsonl$")
_PROGRESS = re.compile(r"^progress-(\d+)$")


def rank_log(rank: int) -> str:
    return "rank-%d.log" % rank


def metrics_spool(rank: int) -> str:
    """What a rank logged, one JSON object a line: a point, {"t": time, "s": step?, "n": total steps?, "m": {...}}; an
    alert, {"t": time, "s": step?, "a": {"kind": ..., "message": ..., "once": of all ranks?}}; the plan it trains by,
    {"t": time, "p": "data=2"}; or a note of checkpoints, {"t": time, "s": step?, "c": ...} with {"folder": ..., ...},
    {"removed": folder}, {"corrupt": folder, "why": ...} or {"root": folder, "there": [folder, ...]}."""
    return "metrics-%d.jsonl" % rank


def progress(rank: int) -> str:
    """How far a rank is; see `windlass.agent.progress`."""
    return "progress-%d" % rank


def stacks(rank: int) -> str:
    """Where the rank's processes were when it was found hanging; its log says it too."""
    return "stacks-%d.txt" % rank


def rank_of_log(name: str) -> "int | None":
    match = _RANK_LOG.match(name)
    return int(match.group(1)) if match else None


def rank_of_spool(name: str) -> "int | None":
    match = _METRICS.match(name)
    return int(match.group(1)) if match else None


def rank_of_progress(name: str) -> "int | None":
    match = _PROGRESS.match(name)
    return int(match.group(1)) if match else None
