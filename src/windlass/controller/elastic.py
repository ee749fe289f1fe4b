"""Elastic runs that have fewer nodes than they could have: when one is stopped, with a warning, to go on with more.
`decide_growth` is pure; shrinking needs nothing here, since every attempt takes what is free when it is placed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from windlass.checkpoints.store import load_good
from windlass.controller.decide import EndAttempt, StopAttempt
from windlass.controller.recording import Work
from windlass.core.exits import ExitReason
from windlass.core.resources import Placement, Resources
from windlass.db.database import Database
from windlass.engines.contract import Phase, StopKind
from windlass.runs.queue import load_cluster_snapshot
from windlass.runs.retry import Retry
from windlass.runs.types import AttemptState
from windlass.scheduling.access import EngineAccess
from windlass.scheduling.place import Soundness, free_nodes
from windlass.scheduling.types import ClusterSnapshot
from windlass.wire.gang import ElasticSpec

SETTLED_S = 30.0  # room must have been there for so long: what comes and goes is not worth a restart
_LOOK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowRun:
    """A running attempt that could be on more nodes."""

    run_id: str
    attempt_id: str
    placement: Placement
    resources: Resources  # of one node
    most_nodes: int
    grow_every_s: float

    @property
    def settled_s(self) -> float:
        return min(SETTLED_S, self.grow_every_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """`nodes`: how many each attempt is to go on with. `since`: when room was first seen, by attempt."""

    nodes: Mapping[str, int]
    since: Mapping[str, float]


def decide_growth(
    snapshot: ClusterSnapshot, narrow: Sequence[NarrowRun], since: Mapping[str, float], *, now: float
) -> Growth:
    """Of each engine one run at a time: the room is the same for all of them. Runs that wait for the engine come first,
    whatever they want: growing must not keep them waiting longer. Those who wait for a node to be given back by hand
    do not count."""
    soundness = Soundness.of(snapshot)
    waiting = [other for other in snapshot.waiting if not soundness.is_out_of_reach(other)]
    nodes: dict[str, int] = {}
    seen: dict[str, float] = {}
    engines: set[str] = set()
    for run in narrow:
        engine = run.placement.engine
        if any(other.engines is None or engine in other.engines for other in waiting):
            continue
        most = min(run.most_nodes, _room(snapshot, run))
        if most <= len(run.placement.shares):
            continue
        seen[run.attempt_id] = since.get(run.attempt_id, now)
        if engine not in engines and now - seen[run.attempt_id] >= run.settled_s:
            nodes[run.attempt_id] = most
            engines.add(engine)
    return Growth(nodes=nodes, since=seen)


def _room(snapshot: ClusterSnapshot, run: NarrowRun) -> int:
    """On how many nodes of its engine it could be once it has given back its own."""
    held = {run_id: placement for run_id, placement in snapshot.held.items() if run_id != run.run_id}
    free = [node for node in free_nodes(replace(snapshot, held=held)) if not node.is_aside]
    return sum(node.node.engine == run.placement.engine and node.fits(run.resources) for node in free)


class Grower:
    """Not thread-safe: one controller loop owns it. What it remembers is no more than a convenience: losing it costs
    waiting again for room to settle, and an ordinary pause between the two attempts.

    Each controller looks after its own runs. Two of them may give a warning for the same room at the same moment; one
    of the runs then goes on with what it had.
    """

    def __init__(self, db: Database, access: EngineAccess) -> None:
        self._db = db
        self._access = access
        self._since: Mapping[str, float] = {}
        self._asked: dict[str, StopAttempt] = {}  # by attempt, while it lives
        self._look_at = 0.0

    def join(self, work: Sequence[Work], now: float) -> list[Work]:
        """What a pass has decided, and what follows from room that some of its runs could have."""
        if not self._asked and not any(item.run.spec_data.get("elastic") for item in work):
            return list(work)
        self._look(work, now)
        joined = [self._with_growth(item) for item in work]
        ended = {item.attempt.id for item in work if item.ends}
        live = {item.attempt.id for item in work} - ended
        self._asked = {attempt_id: stop for attempt_id, stop in self._asked.items() if attempt_id in live}
        return joined

    def _look(self, work: Sequence[Work], now: float) -> None:
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_EVERY_S
        busy = {item.attempt.engine for item in work if item.attempt.id in self._asked}
        narrow = {item.attempt.id: item for item in work if _may_grow(item, now) and item.attempt.engine not in busy}
        if not narrow:
            self._since = {}
            return
        with self._db.read() as tx:
            # What was never saved would be lost, whether or not the program heeds a warning.
            narrow = {id: item for id, item in narrow.items() if load_good(tx, item.run.id)}
            snapshot = load_cluster_snapshot(tx, self._access, now=now)
        growth = decide_growth(snapshot, [_narrow(item) for item in narrow.values()], self._since, now=now)
        self._since = growth.since
        for attempt_id, nodes in growth.nodes.items():
            item = narrow[attempt_id]
            self._asked[attempt_id] = StopAttempt(
                grace_s=item.run.spec.grace,
                kind=StopKind.PREEMPTED,
                why=f"it grows from {len(item.attempt.placement.shares)} to {nodes} nodes",
            )

    def _with_growth(self, item: Work) -> Work:
        stop = self._asked.get(item.attempt.id)
        if stop is None or item.run.cancelling:
            return item
        if not item.ends:
            others = any(isinstance(decision, StopAttempt) for decision in item.decisions)
            return item if others else replace(item, decisions=[*item.decisions, stop])
        return replace(item, decisions=[_hastened(d, stop) if isinstance(d, EndAttempt) else d for d in item.decisions])


def _may_grow(item: Work, now: float) -> bool:
    wanted = item.run.spec_data.get("elastic")
    if not wanted or item.run.cancelling or item.decisions:
        return False
    if item.attempt.state is not AttemptState.RUNNING or item.seen.phase is not Phase.RUNNING:
        return False
    elastic = ElasticSpec.model_validate(wanted)
    if elastic.grow_every is None or len(item.attempt.placement.shares) >= elastic.max_nodes:
        return False
    started_at = item.attempt.started_at
    return started_at is not None and now - started_at >= elastic.grow_every


def _narrow(item: Work) -> NarrowRun:
    elastic = ElasticSpec.model_validate(item.run.spec_data["elastic"])
    assert elastic.grow_every is not None
    return NarrowRun(
        run_id=item.run.id,
        attempt_id=item.attempt.id,
        placement=item.attempt.placement,
        resources=item.run.resources,
        most_nodes=elastic.max_nodes,
        grow_every_s=elastic.grow_every,
    )


def _hastened(end: EndAttempt, stop: StopAttempt) -> EndAttempt:
    """The pause after a preemption is for those whose node was wanted by others."""
    if end.exit.reason is ExitReason.PREEMPTED and isinstance(end.verdict, Retry):
        return replace(end, verdict=Retry(after_s=0.0, why=stop.why))
    return end
