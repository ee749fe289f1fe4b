"""What Slurm's listings say, row by row: which columns are asked for, and how they are read. Pure.

Columns have fixed widths rather than separators or JSON: comments of other people's jobs may hold any separator, and
the JSON of squeue has changed with almost every release.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

JOB_COLUMNS = (("JobID", 24), ("State", 24), ("Reason", 64), ("RestartCnt", 12), ("Comment", 160), ("NodeList", 256))
NODE_COLUMNS = (
    *(("NodeList", 128), ("StateComplete", 128), ("CPUsState", 48), ("Memory", 24), ("AllocMem", 24)),
    *(("Gres", 512), ("GresUsed", 512), ("Features", 1024)),
)
_GPUS = re.compile(r"(?:^|,)gpu(?::(?P<type>[^:,()]+))??:(?P<count>\d+)(?:\([^)]*\))?(?=,|$)")
# A node with any of these takes no new work.
_UNFIT = frozenset(
    (
        *("down", "drain", "draining", "drained", "fail", "failing", "error", "unknown", "future", "maint"),
        *("not_responding", "invalid_reg", "reboot_requested", "reboot_issued", "powering_down", "power_down"),
    )
)
_GOING = frozenset(("drain", "draining", "drained", "fail", "failing"))
_GONE = frozenset(("down", "fail", "error"))
_DOWN = _GONE | {"not_responding"}


class JobLife(StrEnum):
    WAITING = "waiting"
    ALIVE = "alive"
    OVER = "over"
    UNKNOWN = "unknown"  # a state this code has never heard of


_WAITING = frozenset(
    ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
)
_ALIVE = frozenset(
    ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING", "POWER_UP_NODE")
)
_OVER = frozenset(
    (
        *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL"),
        *("DEADLINE", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    job_id: str
    state: str
    reason: str = ""
    restarts: int = 0
    comment: str = ""
    nodes: str = ""

    @property
    def life(self) -> JobLife:
        for names, life in ((_WAITING, JobLife.WAITING), (_ALIVE, JobLife.ALIVE), (_OVER, JobLife.OVER)):
            if self.state in names:
                return life
        return JobLife.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    name: str
    states: frozenset[str]
    cpus: int  # without those that are set aside
    cpus_used: int
    memory_mb: int
    memory_used_mb: int
    gpus: int = 0
    gpus_used: int = 0
    gpu_type: str | None = None
    features: tuple[str, ...] = ()

    @property
    def is_fit(self) -> bool:
        return not self.states & _UNFIT

    @property
    def is_down(self) -> bool:
        return bool(self.states & _DOWN)

    @property
    def is_gone(self) -> bool:
        """Until somebody brings it back. One that does not respond may just be slow to."""
        return bool(self.states & _GONE)

    @property
    def is_going(self) -> bool:
        return bool(self.states & _GOING) and not self.is_down


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJob:
    """A job that squeue no longer lists, from the accounting."""

    job_id: str
    name: str
    state: str


def format_columns(columns: Sequence[tuple[str, int]]) -> str:
    return ",".join(f"{name}:{width}" for name, width in columns)


def parse_jobs(listing: bytes) -> list[JobRow]:
    return [
        JobRow(
            job_id=job_id,
            state=state,
            reason="" if reason == "None" else reason,
            restarts=int(restarts) if restarts.isdigit() else 0,
            comment="" if comment == "(null)" else comment,
            nodes="" if nodes == "(null)" else nodes,
        )
        for job_id, state, reason, restarts, comment, nodes in _rows(listing, JOB_COLUMNS)
    ]


def parse_nodes(listing: bytes) -> list[NodeRow]:
    """A node is listed once for every partition it is in."""
    found = {}
    for name, states, cpus, memory, used, gres, gres_used, features in _rows(listing, NODE_COLUMNS):
        allocated, _, other, total = (int(number) for number in cpus.split("/"))
        gpus, gpu_type = count_gpus(gres)
        found[name] = NodeRow(
            name=name,
            states=frozenset(re.split(r"[+*~#!%$@^-]", states.lower())) - {""},
            cpus=total - other,
            cpus_used=allocated,
            memory_mb=_number(memory),
            memory_used_mb=_number(used),
            gpus=gpus,
            gpus_used=count_gpus(gres_used)[0],
            gpu_type=gpu_type,
            features=() if features == "(null)" else tuple(filter(None, features.split(","))),
        )
    return list(found.values())


def parse_past_jobs(listing: bytes) -> list[PastJob]:
    """`sacct -P`: state may go on, as in `CANCELLED by 1000`."""
    found = []
    for line in listing.decode(errors="replace").splitlines():
        job_id, _, rest = line.partition("|")
        state, _, name = rest.partition("|")
        if job_id and state:
            found.append(PastJob(job_id=job_id, state=state.split()[0], name=name))
    return found


def parse_graces(listing: bytes) -> dict[str, int]:
    """The GraceTime of each partition in seconds, from `scontrol show partition -o`; under "" the default one's."""
    found = {}
    for line in listing.decode(errors="replace").splitlines():
        facts = dict(word.partition("=")[::2] for word in line.split())
        grace_s = _number(facts.get("GraceTime", "0"))
        found[facts.get("PartitionName", "")] = grace_s
        if facts.get("Default") == "YES":
            found[""] = grace_s
    return found


def count_gpus(gres: str) -> tuple[int, str | None]:
    """How many, and of which type, in `gpu:a100:4(S:0-1),nic:2`."""
    found = list(_GPUS.finditer(gres))
    types = [match["type"] for match in found if match["type"]]
    return sum(int(match["count"]) for match in found), types[0] if types else None


def _rows(listing: bytes, columns: Sequence[tuple[str, int]]) -> Iterator[list[str]]:
    for line in listing.split(b"\n"):
        if not line.strip():
            continue
        fields, start = [], 0
        for _, width in columns:
            fields.append(line[start : start + width].decode(errors="replace").strip())
            start += width
        yield fields


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
