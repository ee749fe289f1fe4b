"""An attempt's folder on the shared file system: its nodes, and what the engine itself keeps beside them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windlass.agent import layout, outcome
from windlass.agent.files import read_json, write_json
from windlass.core.exits import ExitReason
from windlass.engines.contract import Observation, StopKind
from windlass.engines.folders.node import NodeFolder
from windlass.engines.folders.plans import attempt_dir
from windlass.engines.slurm.observing import blame_node

SCRIPT = "job.sh"
SLURM_LOG = "slurm.log"
_JOB = "job.json"  # written after submission; without it, a job may or may not exist
_VERDICT = "verdict.json"  # the ends of nodes that left none themselves; stands against whatever they may still write
_RELEASED = "released.json"
_LOOK = "look.json"


@dataclass(slots=True, kw_only=True)
class Attempt:
    """`plans` None: the attempt was released. Besides the folder it remembers what spares reading files again."""

    path: Path
    attempt_id: str
    token: str
    nodes: tuple[NodeFolder, ...]
    plans: tuple[Mapping[str, Any], ...] | None
    job_id: str | None = None
    submitted_at: float | None = None  # by this process, monotonic
    doubtful_since: float = 0.0  # monotonic: a submission before this may or may not have worked
    over_since: float | None = None  # monotonic: when Slurm was first seen to say so
    verdict: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] | None = None
    ended: Observation | None = None

    @property
    def node_names(self) -> Sequence[str]:
        return self.plans[0]["node_names"] if self.plans else ()

    def node_end(self, node: NodeFolder) -> Mapping[str, Any] | None:
        decided = self.verdict.get(str(node.rank))
        return decided if decided is not None else node.outcome()

    def note_job(self, job_id: str) -> None:
        write_json(str(self.path / _JOB), {"job_id": job_id, "token": self.token})
        self.job_id = job_id

    def decide_ends(self, reason: ExitReason, message: str, now: float, *, down: Collection[str] = frozenset()) -> None:
        """For every node that has not ended by itself; `down`: those that are to blame for it. Whoever of them still
        runs, cut off from Slurm but not from this folder, finds the wish to stop and ends."""
        left = [node for node in self.nodes if self.node_end(node) is None]
        ends = dict(self.verdict)
        for node in left:
            status = node.status()
            wish = node.wish()
            kind = ExitReason(wish["kind"]) if wish is not None and reason is ExitReason.LOST else reason
            end = outcome.summary(
                reason=kind.value,
                message=message,
                started_at=status["started_at"] if status is not None else None,
                ended_at=now,
            )
            ends[str(node.rank)] = {**end, **(blame_node(down, self.node_names) if kind is ExitReason.LOST else {})}
        write_json(str(self.path / _VERDICT), ends)
        self.verdict = ends
        for node in left:
            node.wish_to_stop(grace_s=0.0, reason=message)
            node.settle_unstarted(now)

    def wish_to_stop(self, nodes: Sequence[NodeFolder], *, grace_s: float, reason: str, kind: StopKind) -> None:
        """Known to all nodes before the first one acts on it: ranks that fail because their peers on other nodes have
        gone are not failures then."""
        for node in nodes:
            node.wish_to_stop(grace_s=grace_s, reason=reason, kind=kind)

    def look_anew(self) -> None:
        """A network file system believes for a while that a file it did not find is not there; writing to the folder
        makes it ask again."""
        for node in self.nodes:
            with contextlib.suppress(FileNotFoundError):
                write_json(str(node.path / _LOOK), {})

    def last_words(self) -> str:
        """The end of what Slurm and the agent had to say outside of any rank's log."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.path / SLURM_LOG).read_text(errors="replace").strip().splitlines()
            return lines[-1][:400] if lines else ""
        return ""

    def release(self) -> None:
        write_json(str(self.path / _RELEASED), {})
        for node in self.nodes:
            if node.outcome() is not None:
                node.tidy()
            (node.path / layout.PLAN).unlink(missing_ok=True)
            (node.path / _LOOK).unlink(missing_ok=True)
        (self.path / SCRIPT).unlink(missing_ok=True)


def load_attempt(shared_dir: Path, attempt_id: str, token: str) -> Attempt | None:
    """None for an attempt that was never written down whole."""
    path = attempt_dir(shared_dir, attempt_id)
    try:
        return _load_attempt(path, attempt_id, token)
    except ValueError:
        nodes = _nodes_in(path, attempt_id, len(list(path.glob("node-*"))))
        if not nodes or any(node.outcome() is None for node in nodes):
            raise
        # Plans that lost power has cut short, say, keep nobody from the ends that are on record.
        return Attempt(path=path, attempt_id=attempt_id, token=token, nodes=nodes, plans=None)


def _load_attempt(path: Path, attempt_id: str, token: str) -> Attempt | None:
    released = (path / _RELEASED).exists()
    first = read_json(str(path / "node-0" / layout.PLAN))
    if first is None and not released:
        return None
    nodes = _nodes_in(path, attempt_id, first["nnodes"] if first is not None else len(list(path.glob("node-*"))))
    plans = [node.plan() for node in nodes]
    whole = tuple(plan for plan in plans if plan is not None)
    if not released and len(whole) < len(nodes):
        return None
    job = read_json(str(path / _JOB))
    return Attempt(
        path=path,
        attempt_id=attempt_id,
        token=token,
        nodes=nodes,
        plans=None if released else whole,
        job_id=str(job["job_id"]) if job is not None else None,
        verdict=read_json(str(path / _VERDICT)) or {},
    )


def _nodes_in(path: Path, attempt_id: str, count: int) -> tuple[NodeFolder, ...]:
    return tuple(NodeFolder(path=path / f"node-{rank}", attempt_id=attempt_id, rank=rank) for rank in range(count))
