"""A trace through the scheduler: `decide` of `windlass.scheduling.core`, on a clock that leaps from event to event.

What is simulated: a run that is stopped saves on the notice and, when it comes back, spends `restart_s` before it goes
on. The scheduler looks after each event, at most once in `pass_s`, and every `tick_s` while somebody waits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from windlass.core.errors import InvalidInput
from windlass.scheduling.core import index
from windlass.scheduling.core.decide import decide
from windlass.scheduling.core.fairness import accrue
from windlass.scheduling.core.learned import History, Lasted, Learned
from windlass.scheduling.core.types import Policy, Project, Reservation, Running, Snapshot, Start, Waiting, Want, begun
from windlass.simulation.cluster import Cluster
from windlass.simulation.trace import Job, Trace

RELEARN_S = 3600.0  # how often what ended is made use of
_ROUNDS = 3  # of passes at one moment: those who were stopped have left before the next


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    restart_s: float = 60.0
    pass_s: float = 30.0
    tick_s: float = 300.0


@dataclass(slots=True, kw_only=True)
class Story:
    """What became of one job."""

    job: Job
    left_s: float
    gpus: int  # that it holds: of its nodes all alike
    started_at: float | None = None
    ended_at: float | None = None
    preemptions: int = 0
    lost_gpu_s: float = 0.0
    work_from: float = 0.0  # in this attempt: when it is back where it was


@dataclass(slots=True, kw_only=True)
class Contention:
    """Of a project, summed over the time in which it and others had runs that waited: GPU-seconds."""

    got: float = 0.0
    due: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    stories: tuple[Story, ...]
    gpus: int
    busy: tuple[tuple[float, int, int], ...]  # from when on, how many GPUs are busy and how many runs wait
    contention: dict[str, Contention]
    passes: int


def replay(
    trace: Trace,
    cluster: Cluster,
    policy: Policy,
    conditions: Conditions = Conditions(),
    *,
    until: float = math.inf,
    told: Callable[[int], None] | None = None,
    one_queue: bool = False,
    contended_from: float = 0.0,
) -> Replayed:
    """To the end of all jobs, or `until`. `told` is called with the number of those that have ended, now and then.

    `one_queue`: the scheduler does not know of projects; what they got is counted all the same, from `contended_from`
    on."""
    replaying = _Replay(trace, cluster, policy, conditions, one_queue, contended_from)
    return replaying.run(until, told or (lambda _: None))


class _Replay:
    def __init__(
        self,
        trace: Trace,
        cluster: Cluster,
        policy: Policy,
        conditions: Conditions,
        one_queue: bool,
        contended_from: float,
    ) -> None:
        self._policy = policy
        self._conditions = conditions
        self._nodes = cluster.node_states()
        self._gpus = cluster.gpus
        self._shapes = _Shapes(cluster)
        self._one_queue = one_queue
        self._contended_from = contended_from
        self._coming = list(reversed(trace.jobs))
        self._wants = {job.name: self._shapes.wants(job) for job in trace.jobs}
        self._stories = {
            job.name: Story(job=job, left_s=job.seconds, gpus=_gpus(self._wants[job.name])) for job in trace.jobs
        }
        self._waiting: dict[str, Waiting] = {}
        self._running: dict[str, Running] = {}
        self._ends: list[tuple[float, str, float]] = []  # and when the attempt began: others are over already
        self._projects = {project.name: project for project in cluster.shares()}
        for name in sorted({job.project for job in trace.jobs} - self._projects.keys()):
            self._projects[name] = Project(name=name)
        self._held = dict.fromkeys(self._projects, 0)
        self._queued = dict.fromkeys(self._projects, 0)
        self._contention = {name: Contention() for name in self._projects}
        self._history = History()
        self._learned: Learned | None = None
        self._learn_at = 0.0
        self._reserved: tuple[Reservation, ...] = ()
        self._busy: list[tuple[float, int, int]] = []
        self._now = 0.0
        self._passes = 0

    def run(self, until: float, told: Callable[[int], None]) -> Replayed:
        while (self._coming or self._running or self._waiting) and self._now < until:
            self._move_to(self._next_moment())
            self._end_runs()
            self._take_in()
            self._settle()
            if len(self._busy) % 256 == 0:
                told(self._history.count)
        told(self._history.count)
        return Replayed(
            stories=tuple(self._stories.values()),
            gpus=self._gpus,
            busy=tuple(self._busy),
            contention=self._contention,
            passes=self._passes,
        )

    def _next_moment(self) -> float:
        while self._ends and not self._is_current(self._ends[0]):
            heappop(self._ends)
        soonest = self._ends[0][0] if self._ends else math.inf
        if self._coming:
            soonest = min(soonest, self._coming[-1].at)
        if self._busy:
            soonest = max(soonest, self._now + self._conditions.pass_s)
        if self._waiting and self._running:
            soonest = min(soonest, self._now + max(self._conditions.tick_s, self._conditions.pass_s))
        if soonest == math.inf:
            stuck = next(iter(self._waiting))
            raise InvalidInput(f"{stuck} waits on an empty cluster: the policy never starts it")
        return soonest

    def _is_current(self, end: tuple[float, str, float]) -> bool:
        run = self._running.get(end[1])
        return run is not None and run.started_at == end[2]

    def _move_to(self, now: float) -> None:
        passed = now - self._now
        if passed > 0:
            self._note_contention(passed)
            half_life_s = self._policy.half_life_s
            for name, project in self._projects.items():
                used = accrue(project.usage, self._held[name] / self._gpus, passed, half_life_s)
                if used != project.usage:
                    self._projects[name] = replace(project, usage=used, usage_at=now)
                elif project.usage_at != now:
                    self._projects[name] = replace(project, usage_at=now)
        self._now = now

    def _note_contention(self, passed: float) -> None:
        wanting = [name for name, count in self._queued.items() if count]
        if len(wanting) < 2 or self._now < self._contended_from:
            return
        held = sum(self._held[name] for name in wanting)
        weights = sum(self._projects[name].weight for name in wanting)
        for name in wanting:
            self._contention[name].got += self._held[name] * passed
            self._contention[name].due += held * self._projects[name].weight / weights * passed

    def _end_runs(self) -> None:
        """A run ends when it ends, even if the scheduler looks a little later."""
        while self._ends and self._ends[0][0] <= self._now:
            end = heappop(self._ends)
            if not self._is_current(end):
                continue
            run = self._running.pop(end[1])
            story = self._stories[run.run_id]
            job = story.job
            story.ended_at, story.left_s = end[0], 0.0
            story.lost_gpu_s += (story.work_from - run.started_at) * story.gpus
            self._held[job.project] -= story.gpus
            lasted_s = run.attained(end[0]) / story.gpus
            self._history.add(Lasted(gpus=story.gpus, project=run.project, user=job.user, seconds=lasted_s))

    def _take_in(self) -> None:
        while self._coming and self._coming[-1].at <= self._now:
            job = self._coming.pop()
            self._queued[job.project] += 1
            self._waiting[job.name] = Waiting(
                run_id=job.name,
                project="" if self._one_queue else job.project,
                user=job.user,
                priority=job.priority,
                wants=self._wants[job.name],
                submitted_at=job.at,
                queued_at=job.at,
            )

    def _settle(self) -> None:
        if self._policy.rank is index.rank and self._now >= self._learn_at:
            going = [index.lasted(run, self._now) for run in self._running.values()]
            going += [index.lasted(run, self._now) for run in self._waiting.values() if run.served]
            self._learned = self._history.learn(going)
            self._learn_at = self._now + RELEARN_S
        for _ in range(_ROUNDS):
            if not self._waiting:
                break
            snapshot = Snapshot(
                nodes=self._nodes,
                running=tuple(self._running.values()),
                waiting=tuple(self._waiting.values()),
                projects=() if self._one_queue else tuple(self._projects.values()),
                learned=self._learned,
                reserved=self._reserved,
            )
            decisions = decide(snapshot, self._policy, self._now)
            self._passes += 1
            self._reserved = decisions.reservations
            for start in decisions.starts:
                self._start(start)
            for stop in decisions.stops:
                self._stop(stop.run_id)
            if not decisions.stops:
                break
        self._busy.append((self._now, sum(self._held.values()), len(self._waiting)))

    def _start(self, start: Start) -> None:
        run = self._waiting.pop(start.run_id)
        story = self._stories[run.run_id]
        back_s = self._conditions.restart_s if story.started_at is not None else 0.0
        if story.started_at is None:
            story.started_at = self._now
        story.work_from = self._now + back_s
        self._held[story.job.project] += story.gpus
        self._queued[story.job.project] -= 1
        self._running[run.run_id] = replace(
            begun(run, start, self._now), saves_on_notice=True, restart_s=self._conditions.restart_s
        )
        heappush(self._ends, (story.work_from + story.left_s, run.run_id, self._now))

    def _stop(self, run_id: str) -> None:
        run = self._running.pop(run_id)
        story = self._stories[run_id]
        story.left_s -= max(0.0, self._now - story.work_from)
        story.lost_gpu_s += (min(self._now, story.work_from) - run.started_at) * story.gpus
        story.preemptions += 1
        self._held[story.job.project] -= story.gpus
        self._queued[story.job.project] += 1
        self._waiting[run_id] = Waiting(
            run_id=run_id,
            project=run.project,
            user=run.user,
            priority=run.priority,
            wants=self._wants[run_id],
            submitted_at=run.submitted_at,
            queued_at=self._now,
            served=run.attained(self._now),
            preemptions=run.preemptions + 1,
            before=run.placement,
        )


def _gpus(wants: tuple[Want, ...]) -> int:
    return int(wants[0].gpus) * wants[0].nodes


class _Shapes:
    """How a job of so many GPUs lies on nodes: on as few as can be, the same on each, if need be with some to spare.
    Jobs of a size share a tuple."""

    def __init__(self, cluster: Cluster) -> None:
        self._counts: Counter[int] = Counter()
        for group in cluster.nodes:
            self._counts[group.gpus] += group.count
        self._gpus = cluster.gpus
        self._found: dict[int, tuple[Want, ...]] = {}

    def wants(self, job: Job) -> tuple[Want, ...]:
        found = self._found.get(job.gpus)
        if found is None:
            found = self._found[job.gpus] = (self._want(job),)
        return found

    def _want(self, job: Job) -> Want:
        # The fewest nodes that it needs on nodes of each size, the largest first.
        for per_node in sorted(self._counts, reverse=True):
            nodes = -(-job.gpus // per_node)
            gpus = -(-job.gpus // nodes)
            if sum(count for most, count in self._counts.items() if most >= gpus) >= nodes:
                return Want(gpus=gpus, nodes=nodes, cpus=0.0)
        nodes_of = ", ".join(f"{count} nodes of {gpus}" for gpus, count in sorted(self._counts.items()))
        raise InvalidInput(
            f"{job.name} wants {job.gpus} GPUs; the cluster has {self._gpus}: {nodes_of}, and a job has the same "
            "on each of its nodes"
        )
