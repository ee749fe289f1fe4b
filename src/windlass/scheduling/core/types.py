"""What a pass of the scheduler sees and what it decides. Values only: everything comes in, nothing is looked up.

Runs that want the same should share one `wants` object: a pass recognises shapes by identity first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from windlass.core.errors import InvalidInput
from windlass.core.resources import Placement


class Health(StrEnum):
    SOUND = "sound"
    DOUBTED = "doubted"  # something broke there: only for those who could not run anywhere else
    CLOSED = "closed"  # set aside by hand: for nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    engine: str
    name: str
    cpus: float
    memory_bytes: int
    gpus: int = 0
    gpu_type: str | None = None
    labels: frozenset[str] = frozenset()  # `key=value`
    topology: tuple[str, ...] = ()  # from the widest to the nearest: zone, rack, switch
    price_per_hour: float = 0.0
    spot: bool = False
    health: Health = Health.SOUND


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """One way in which a run could be placed. Amounts are of one node."""

    gpus: float = 0  # whole, or a part of one: 0.5
    gpu_type: str | None = None  # None: any GPU; see `core.accelerators` for TPUs
    cpus: float = 1.0
    memory_bytes: int = 0
    nodes: int = 1  # at least
    most_nodes: int | None = None  # of an elastic run; None: exactly `nodes`
    engines: frozenset[str] | None = None  # None: any
    labels: frozenset[str] = frozenset()  # that a node must have
    spot_ok: bool = True

    def __post_init__(self) -> None:
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise InvalidInput(f"{self.gpus} GPUs on a node: must be a whole number, or a part of one such as 0.5")

    @property
    def most(self) -> int:
        return self.most_nodes if self.most_nodes is not None else self.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    run_id: str
    project: str
    wants: tuple[Want, ...]  # alternatives, the one that is liked most first
    user: str = ""
    priority: int = 0  # higher is sooner
    submitted_at: float = 0.0
    queued_at: float = 0.0  # since when it waits this time
    served: float = 0.0  # GPU-seconds of all attempts (CPU-only runs: `Policy.size` of a GPU)
    preemptions: int = 0
    deadline: float | None = None
    longest_s: float | None = None  # it is ended after so long; None: nobody knows
    before: Placement | None = None  # where it was last, by node rank
    interrupted: bool = False  # something broke, or it changes its size: it did not give its place to anybody

    def attained(self, now: float) -> float:  # noqa: ARG002 (the same call as of a running one)
        return self.served


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    run_id: str
    project: str
    want: Want  # the alternative that it got
    placement: Placement
    user: str = ""
    priority: int = 0
    submitted_at: float = 0.0
    queued_at: float | None = None  # before this attempt; None: it did not wait
    started_at: float = 0.0  # this attempt
    served: float = 0.0  # GPU-seconds of the attempts before this one
    saved_at: float | None = None  # its last checkpoint; None: none in this attempt
    saves_on_notice: bool = False  # what it did since its last checkpoint is not lost when it is warned
    restart_s: float = 60.0  # what coming back takes, as learned
    preemptible: bool = True
    preemptions: int = 0
    stopping: bool = False  # it was warned already: its room comes back soon
    keeps: Placement | None = None  # of one that is stopping to become smaller or larger: what it goes on with
    ends_at: float | None = None  # as estimated; None: nobody knows
    # Of an elastic run: how long it is left alone before it is stopped to go on with more. None: as the policy has it.
    grow_every_s: float | None = None

    @property
    def has_saved(self) -> bool:
        """Whether only a part of its work is lost when it is stopped, if any."""
        return self.saves_on_notice or self.saved_at is not None

    @property
    def waited_s(self) -> float:
        return self.started_at - self.queued_at if self.queued_at is not None else 0.0

    def attained(self, now: float) -> float:
        return self.served + max(0.0, now - self.started_at) * size(self.want) * len(self.placement.shares)


Run = Waiting | Running
Rank = Callable[[Run, Any, float], float]  # run, what was learned, now: smaller is sooner


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """`quota` and `limit` by resource: `gpu`, `gpu:h100`, `tpu`, `tpu:v5e`, `cpu`, `memory`; `limit` also `runs`."""

    name: str
    parent: str | None = None
    weight: float = 1.0
    quota: Mapping[str, float] = field(default_factory=dict)  # guaranteed to it and the projects below it together
    limit: Mapping[str, float] = field(default_factory=dict)  # never more
    usage: float = 0.0  # dominant-share seconds, decayed (see `fairness.accrue`)
    usage_at: float = 0.0


def attained_service(run: Run, learned: Any, now: float) -> float:  # noqa: ARG001
    """Least attained service first: what is short is over soon, without anybody knowing what is short."""
    return run.attained(now)


def order_of_arrival(run: Run, learned: Any, now: float) -> float:  # noqa: ARG001
    return run.submitted_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    rank: Rank = attained_service  # within a project and a priority
    half_life_s: float = 7 * 24 * 3600.0  # of what projects have used
    backfill: bool = True  # False: nobody overtakes a run that does not fit
    reservations: int = 4  # how many runs that do not fit have their room kept
    preempts: bool = True
    # A run displaces another of its project whose rank is worse by this factor, and by what its restart costs.
    # None: never for the order within a project.
    index_margin: float | None = 2.0
    # A project that has less than its weight gives it displaces runs of those that have more, see `shares`.
    preempts_for_shares: bool = True
    min_run_s: float = 300.0  # nobody is stopped sooner; twice as long after each preemption
    grace_s: float = 30.0  # between warning and end
    most_stops: int = 128  # in one pass
    ageing_s: float = 24 * 3600.0  # one that waits for longer comes first in its project, see `order`
    starving_s: float = 72 * 3600.0  # and then among all
    urgent_s: float = 3600.0  # before the last moment to meet its deadline a run goes to the front of its project
    grow_after_s: float = 600.0  # of an elastic run that has fewer nodes than it could
    user_limit: Mapping[str, float] = field(default_factory=dict)  # as of projects, for every user


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    nodes: tuple[NodeState, ...]
    running: tuple[Running, ...] = ()
    waiting: tuple[Waiting, ...] = ()  # those that may start now
    projects: tuple[Project, ...] = ()  # one that is not named has weight 1, no quota and no limit
    learned: Any = None  # handed to `Policy.rank`
    away: tuple[NodeState, ...] = ()  # these cannot be asked now: nothing is placed there, but there they are
    # What the last pass kept. Without it room for a gang comes together later, and nothing else is lost.
    reserved: tuple[Reservation, ...] = ()


class Cause(StrEnum):
    PRIORITY = "priority"
    RECLAIM = "reclaim"  # of a guaranteed quota from those who borrowed it
    SHARE = "share"  # of one that has less than its weight gives it, from those that have more
    ORDER = "order"  # within the project
    ROOM = "room"  # an elastic run had more nodes than it needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    run_id: str
    want: Want
    placement: Placement


def begun(run: Waiting, start: Start, now: float) -> Running:
    """The run as it is once this decision is carried out; what is learned of it comes on top."""
    return Running(
        run_id=run.run_id,
        project=run.project,
        user=run.user,
        priority=run.priority,
        want=start.want,
        placement=start.placement,
        submitted_at=run.submitted_at,
        queued_at=run.queued_at,
        started_at=now,
        served=run.served,
        preemptions=run.preemptions,
        ends_at=None if run.longest_s is None else now + run.longest_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    run_id: str
    by: str  # whom it makes room for
    cause: Cause
    lost: float  # GPU-seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """An elastic run is to go on with these nodes. Where it becomes smaller, its room serves `by`."""

    run_id: str
    placement: Placement
    by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    run_id: str
    at: float  # as estimated
    engine: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    starts: tuple[Start, ...] = ()
    stops: tuple[Stop, ...] = ()
    resizes: tuple[Resize, ...] = ()
    reservations: tuple[Reservation, ...] = ()


CPUS_PER_GPU = 16.0  # what a run without GPUs counts as, so that it has a size too


def size(want: Want) -> float:
    """Of one node's share, in GPUs."""
    return want.gpus if want.gpus else want.cpus / CPUS_PER_GPU
