"""A small cluster that lives: runs come, start, are stopped and end as decided. What must always hold is checked here,
in terms of the snapshot and the decisions only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from windlass.core.resources import NodeShare, Placement
from windlass.scheduling.core.decide import decide
from windlass.scheduling.core.types import (
    Cause,
    Decisions,
    Health,
    NodeState,
    Policy,
    Project,
    Reservation,
    Running,
    Snapshot,
    Waiting,
    Want,
    begun,
    size,
)

Key = tuple[str, str]


@dataclass
class World:
    nodes: list[NodeState]
    policy: Policy
    projects: list[Project] = field(default_factory=list)
    now: float = 0.0
    waiting: dict[str, Waiting] = field(default_factory=dict)
    running: dict[str, Running] = field(default_factory=dict)
    left_s: dict[str, float] = field(default_factory=dict)  # work that each run has still to do
    origin: dict[str, Waiting] = field(default_factory=dict)
    warned_at: dict[str, float] = field(default_factory=dict)
    started_first: dict[str, float] = field(default_factory=dict)
    preemptions: int = 0
    reserved: tuple[Reservation, ...] = ()  # by the last pass

    def submit(self, run: Waiting, work_s: float) -> None:
        run = replace(run, queued_at=self.now, submitted_at=self.now)
        self.waiting[run.run_id] = self.origin[run.run_id] = run
        self.left_s[run.run_id] = work_s

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(
            nodes=tuple(self.nodes),
            running=tuple(self.running.values()),
            waiting=tuple(self.waiting.values()),
            projects=tuple(self.projects),
            reserved=self.reserved,
        )

    def step(self, seconds: float) -> Decisions:
        """Time passes, what is over ends, and one pass decides."""
        self._pass_time(seconds)
        snapshot = self.snapshot
        found = decide(snapshot, self.policy, self.now)
        check(snapshot, self.policy, self.now, found)
        self.reserved = found.reservations
        for start in found.starts:
            run = self.waiting.pop(start.run_id)
            self.started_first.setdefault(run.run_id, self.now)
            self.running[run.run_id] = replace(begun(run, start, self.now), saves_on_notice=True)
        for stop in found.stops:
            self.running[stop.run_id] = replace(self.running[stop.run_id], stopping=True)
            self.warned_at[stop.run_id] = self.now
            self.preemptions += 1
        for resize in found.resizes:
            self.running[resize.run_id] = replace(self.running[resize.run_id], stopping=True, keeps=resize.placement)
            self.warned_at[resize.run_id] = self.now
        return found

    def _pass_time(self, seconds: float) -> None:
        self.now += seconds
        for run in list(self.running.values()):
            if self.left_s[run.run_id] <= self.now - run.started_at:
                self._end(run)
            elif run.stopping and self.now - self.warned_at[run.run_id] >= self.policy.grace_s:
                if run.keeps is not None:
                    self.running[run.run_id] = replace(run, placement=run.keeps, keeps=None, stopping=False)
                else:
                    self._requeue(run)

    def _end(self, run: Running) -> None:
        del self.running[run.run_id], self.left_s[run.run_id]

    def _requeue(self, run: Running) -> None:
        """It saved on the notice: nothing but time is lost."""
        del self.running[run.run_id]
        self.left_s[run.run_id] -= self.now - run.started_at
        self.waiting[run.run_id] = replace(
            self.origin[run.run_id],
            queued_at=self.now,
            served=run.attained(self.now),
            preemptions=run.preemptions + 1,
            before=run.placement,
        )


def check(snapshot: Snapshot, policy: Policy, now: float, found: Decisions) -> None:
    waiting = {run.run_id: run for run in snapshot.waiting}
    running = {run.run_id: run for run in snapshot.running}
    assert len({start.run_id for start in found.starts}) == len(found.starts)
    assert {start.run_id for start in found.starts} <= waiting.keys()
    assert len({kept.run_id for kept in found.reservations}) == len(found.reservations)
    placements = [(start.placement, start.want) for start in found.starts]
    nodes = {(node.engine, node.name): node for node in snapshot.nodes}
    for start in found.starts:
        assert start.want in waiting[start.run_id].wants
        _check_gang(start.placement, start.want, nodes)
    held: dict[str, Placement] = {run.run_id: _union(run) for run in snapshot.running}
    for resize in found.resizes:
        run = running[resize.run_id]
        assert run.want.nodes <= len(resize.placement.shares) <= run.want.most
        _check_gang(resize.placement, run.want, {**nodes})
        held[run.run_id] = _union(replace(run, keeps=resize.placement))
    _check_room([*held.values(), *(placement for placement, _ in placements)], nodes)
    _check_limits(snapshot, policy, found)
    _check_stops(snapshot, policy, now, found)
    _check_reservations(snapshot, policy, now, found, held)


def _union(run: Running) -> Placement:
    """What it has and what it is to have, until it has gone on."""
    if run.keeps is None:
        return run.placement
    there = {share.node for share in run.placement.shares}
    more = tuple(share for share in run.keeps.shares if share.node not in there)
    return Placement(engine=run.placement.engine, shares=run.placement.shares + more)


def _check_gang(placement: Placement, want: Want, nodes: dict[Key, NodeState]) -> None:
    """Whole, on different nodes of one engine that suit it."""
    assert want.nodes <= len(placement.shares) <= want.most
    assert len({share.node for share in placement.shares}) == len(placement.shares)
    assert want.engines is None or placement.engine in want.engines
    for share in placement.shares:
        node = nodes[placement.engine, share.node]
        assert node.health is not Health.CLOSED
        assert want.spot_ok or not node.spot
        assert want.labels <= node.labels
        assert want.gpu_type is None or not want.gpus or node.gpu_type == want.gpu_type
        assert (share.cpus, share.memory_bytes) == (want.cpus, want.memory_bytes)
        assert len(share.gpu_indices) * share.gpu_part == want.gpus
        assert all(0 <= index < node.gpus for index in share.gpu_indices)


def _check_room(placements: Iterable[Placement], nodes: dict[Key, NodeState]) -> None:
    """Nothing is given twice."""
    gpus: dict[tuple[Key, int], float] = defaultdict(float)
    cpus: dict[Key, float] = defaultdict(float)
    memory: dict[Key, int] = defaultdict(int)
    for placement in placements:
        for share in placement.shares:
            key = (placement.engine, share.node)
            cpus[key] += share.cpus
            memory[key] += share.memory_bytes
            for index in share.gpu_indices:
                gpus[key, index] += share.gpu_part
    assert all(part <= 1 for part in gpus.values())
    assert all(amount <= nodes[key].cpus for key, amount in cpus.items() if key in nodes)
    assert all(amount <= nodes[key].memory_bytes for key, amount in memory.items() if key in nodes)


def _above(project: str, projects: dict[str, Project]) -> list[str]:
    names: list[str] = []
    while project not in names:
        names.append(project)
        parent = projects[project].parent if project in projects else None
        if parent is None or parent not in projects:
            break
        project = parent
    return names


def _check_limits(snapshot: Snapshot, policy: Policy, found: Decisions) -> None:
    """Of GPUs, as tests set them: whoever started something stays below the limits."""
    projects = {project.name: project for project in snapshot.projects}
    held: dict[str, float] = defaultdict(float)
    by_user: dict[str, float] = defaultdict(float)
    waiting = {run.run_id: run for run in snapshot.waiting}
    for run in snapshot.running:
        for name in _above(run.project, projects):
            held[name] += run.want.gpus * len(run.placement.shares)
        by_user[run.user] += run.want.gpus * len(run.placement.shares)
    for start in found.starts:
        run_waiting = waiting[start.run_id]
        gpus = start.want.gpus * len(start.placement.shares)
        by_user[run_waiting.user] += gpus
        for name in _above(run_waiting.project, projects):
            held[name] += gpus
            if gpus and name in projects and "gpu" in projects[name].limit:
                assert held[name] <= projects[name].limit["gpu"]
        if gpus and "gpu" in policy.user_limit:
            assert by_user[run_waiting.user] <= policy.user_limit["gpu"]


def _check_stops(snapshot: Snapshot, policy: Policy, now: float, found: Decisions) -> None:
    """Only for those who are entitled, and nobody who is protected."""
    waiting = {run.run_id: run for run in snapshot.waiting}
    running = {run.run_id: run for run in snapshot.running}
    projects = {project.name: project for project in snapshot.projects}
    started = {start.run_id for start in found.starts}
    assert len({stop.run_id for stop in found.stops}) == len(found.stops)
    for stop in found.stops:
        by, victim = waiting[stop.by], running[stop.run_id]
        assert stop.by not in started
        assert stop.by in {kept.run_id for kept in found.reservations}
        assert victim.preemptible
        assert not victim.stopping
        assert now - victim.started_at >= policy.min_run_s
        if stop.cause is Cause.PRIORITY:
            assert by.priority > victim.priority
        elif stop.cause is Cause.RECLAIM:
            assert by.project != victim.project
            assert _is_entitled_to_reclaim(by, snapshot, projects)
        elif stop.cause is Cause.SHARE:
            assert policy.preempts_for_shares
            assert by.priority == victim.priority
            assert len({run.project for run in (*snapshot.waiting, *snapshot.running)}) > 1
            assert by.project != victim.project or by.wants[0].gpus * by.wants[0].nodes >= victim.want.gpus
        else:
            assert stop.cause is Cause.ORDER
            assert (by.project, by.priority) == (victim.project, victim.priority)
            assert policy.index_margin is not None
            is_old = now - by.queued_at >= policy.ageing_s
            assert is_old or victim.attained(now) > policy.index_margin * by.served


def _is_entitled_to_reclaim(by: Waiting, snapshot: Snapshot, projects: dict[str, Project]) -> bool:
    """With what it wants, its project or one above it stays within its quota of GPUs."""
    for name in _above(by.project, projects):
        quota = projects[name].quota.get("gpu") if name in projects else None
        if quota is not None:
            held = sum(
                run.want.gpus * len(run.placement.shares)
                for run in snapshot.running
                if name in _above(run.project, projects)
            )
            if any(want.gpus and held + want.gpus * want.nodes <= quota for want in by.wants):
                return True
    return False


def _check_reservations(
    snapshot: Snapshot, policy: Policy, now: float, found: Decisions, held: dict[str, Placement]
) -> None:
    """What starts now takes nothing that is kept: at the time of each reserved start there is room for it, if those
    that run end as expected, and those that start now go on unless they must end."""
    waiting = {run.run_id: run for run in snapshot.waiting}
    stopped = {stop.run_id for stop in found.stops}
    resized = {resize.run_id: resize.placement for resize in found.resizes}
    ends: list[tuple[float, Placement]] = []
    for run in snapshot.running:
        keeps = resized.get(run.run_id, run.keeps)
        placement = held[run.run_id]
        end = _end_of(run, now, policy, stopped)
        if keeps is not None:
            stay = {share.node for share in keeps.shares}
            there = {share.node for share in run.placement.shares}
            for share in placement.shares:
                until = end if share.node in there else float("inf")
                until = until if share.node in stay else now + policy.grace_s
                ends.append((until, Placement(engine=placement.engine, shares=(share,))))
        else:
            ends.append((end, placement))
    for start in found.starts:
        longest = waiting[start.run_id].longest_s
        ends.append((float("inf") if longest is None else now + longest, start.placement))
    capacity = {(node.engine, node.name): node for node in snapshot.nodes}
    for kept in found.reservations:
        wants = waiting[kept.run_id].wants
        still = [placement for end, placement in ends if end > kept.at]
        assert any(
            len(kept.nodes) == want.nodes
            and all(_fits(want, capacity[kept.engine, name], still) for name in kept.nodes)
            for want in wants
        )


def _end_of(run: Running, now: float, policy: Policy, stopped: set[str]) -> float:
    if run.stopping or run.run_id in stopped:
        return now + policy.grace_s
    if run.ends_at is not None:
        return max(run.ends_at, now + 1)
    return now + max(60.0, now - run.started_at)


def _fits(want: Want, node: NodeState, still: list[Placement]) -> bool:
    shares: list[NodeShare] = [
        share
        for placement in still
        if placement.engine == node.engine
        for share in placement.shares
        if share.node == node.name
    ]
    busy = {index for share in shares for index in share.gpu_indices}
    return (
        node.gpus - len(busy) >= (want.gpus if want.gpus >= 1 or not want.gpus else 1)
        and node.cpus - sum(share.cpus for share in shares) >= want.cpus
        and node.memory_bytes - sum(share.memory_bytes for share in shares) >= want.memory_bytes
    )


def work_of(runs: Iterable[tuple[Want, float]]) -> float:
    return sum(size(want) * want.nodes * seconds for want, seconds in runs)
