"""When runs that wait will start: the scheduler's own decisions, carried forward on a clock of their own, a few times
over with lengths drawn from what was learned of how long runs last. The same snapshot gives the same forecast.

What nobody knows yet is left out: runs that will be submitted, and nodes that will break.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from zlib import crc32

from windlass.scheduling.core import index
from windlass.scheduling.core.decide import decide
from windlass.scheduling.core.fairness import Amount, accrue, capacity, dominant_share
from windlass.scheduling.core.learned import Learned
from windlass.scheduling.core.ranking import rank_queue
from windlass.scheduling.core.types import Decisions, Policy, Running, Snapshot, Start, Waiting, begun

SAMPLES = 5
HORIZON_S = 30 * 86400.0
EFFORT = 40_000  # runs that all passes together look at: about a third of a second
LEAST_SAMPLES, LEAST_PASSES = 3, 5  # however many runs there are
_SHORTEST_S = 1.0  # nothing ends at the very moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Of a start: of ten times it is one time sooner than `earliest` and one time later than `latest`, as often sooner
    as later than `likely`. None: later than the forecast looks."""

    earliest: float | None
    likely: float | None
    latest: float | None


def forecast_start(
    snapshot: Snapshot,
    policy: Policy,
    now: float,
    run_id: str,
    *,
    samples: int = SAMPLES,
    horizon_s: float = HORIZON_S,
    effort: int = EFFORT,
) -> Forecast | None:
    """None: this run does not wait. Of the queue only those ahead of it are looked at: whoever overtakes it does not
    delay it."""
    ranked = rank_queue(snapshot, policy, now)
    if run_id not in ranked:
        return None
    ahead = set(ranked[: ranked.index(run_id) + 1])
    shorter = replace(snapshot, waiting=tuple(run for run in snapshot.waiting if run.run_id in ahead))
    return _forecasts(shorter, policy, now, [run_id], samples, horizon_s, effort)[run_id]


def forecast_starts(
    snapshot: Snapshot,
    policy: Policy,
    now: float,
    *,
    samples: int = SAMPLES,
    horizon_s: float = HORIZON_S,
    effort: int = EFFORT,
) -> dict[str, Forecast]:
    """Of all that wait, in the order of the snapshot. Coarser than of one alone, for the same effort."""
    run_ids = [run.run_id for run in snapshot.waiting]
    return _forecasts(snapshot, policy, now, run_ids, samples, horizon_s, effort)


def _forecasts(
    snapshot: Snapshot,
    policy: Policy,
    now: float,
    run_ids: Sequence[str],
    samples: int,
    horizon_s: float,
    effort: int,
) -> dict[str, Forecast]:
    if not run_ids:
        return {}
    first = decide(snapshot, policy, now)  # the same in all of them
    count = len(snapshot.running) + len(snapshot.waiting)
    samples = max(min(samples, LEAST_SAMPLES), min(samples, effort // (LEAST_PASSES * count)))
    passes = max(LEAST_PASSES, effort // (samples * count))
    found: dict[str, list[float]] = {run_id: [] for run_id in run_ids}
    for number in range(samples):
        future = _Future(snapshot, policy, now, _Draw(number, samples))
        starts = future.unfold(first, set(run_ids), passes, now + horizon_s)
        for run_id in run_ids:
            found[run_id].append(starts.get(run_id, math.inf))
    return {run_id: _forecast(sorted(times)) for run_id, times in found.items()}


def _forecast(times: list[float]) -> Forecast:
    def quantile(part: float) -> float | None:
        found = times[round(part * (len(times) - 1))]
        return None if found == math.inf else found

    return Forecast(earliest=quantile(0.1), likely=quantile(0.5), latest=quantile(0.9))


class _Draw:
    """Chances for one of several samples. Over all samples each run has one in every stretch of equal chance, so that
    few samples tell as much as many that are drawn at random."""

    def __init__(self, number: int, samples: int) -> None:
        self._number = number
        self._samples = samples
        self._strides = [stride for stride in range(1, samples + 1) if math.gcd(stride, samples) == 1]

    def chance(self, run_id: str) -> float:
        seed = crc32(run_id.encode())
        stride = self._strides[(seed >> 8) % len(self._strides)]
        stretch = (seed + self._number * stride) % self._samples
        within = ((seed >> 16) + 0.5) / (1 << 16)
        return (stretch + within) / self._samples


class _Future:
    """One way in which it could come."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now: float, draw: _Draw) -> None:
        self._snapshot = snapshot
        self._policy = policy
        self._now = now
        learned = snapshot.learned
        self._learned = learned if isinstance(learned, Learned) else Learned()
        self._draw = draw
        self._waiting = {run.run_id: run for run in snapshot.waiting}
        self._running = {run.run_id: run for run in snapshot.running}
        self._projects = snapshot.projects
        self._whole = capacity(snapshot.nodes)
        self._lasts_s: dict[str, float] = {}  # each run in all, over all its attempts
        self._ends = [(self._end_of(run), run.run_id, run.started_at) for run in snapshot.running]
        heapify(self._ends)

    def unfold(self, first: Decisions, awaited: Collection[str], passes: int, until: float) -> dict[str, float]:
        """When those who are awaited start, as far as that is before `until` and so many passes tell."""
        starts: dict[str, float] = {}
        missing = set(awaited)
        decisions, policy = first, self._policy
        count = len(self._running) + len(self._waiting)
        ended = 0
        for number in range(1, passes + 1):
            for start in decisions.starts:
                self._start(start)
                if start.run_id in missing:
                    missing.discard(start.run_id)
                    starts[start.run_id] = self._now
            for stop in decisions.stops:
                self._stop(stop.run_id)
            if not missing or number == passes:
                break
            if number == (passes // 2 if count <= passes else 1):
                policy = replace(policy, preempts=False)  # from here on only ends bring room: they must suffice
            # From pass to pass some times as many have ended, if passes are few; but nobody waits for the very last.
            due = 0 if count <= passes else int(count ** (number / (passes - 1)))
            batch = max(1, min(due - ended, len(self._running) // 2))
            gone = self._pass_time(batch, bool(decisions.stops), until)
            if self._now >= until or not (gone or decisions.stops):
                break
            ended += gone
            decisions = decide(self._as_it_is(decisions), policy, self._now)
        return starts

    def _as_it_is(self, last: Decisions) -> Snapshot:
        return replace(
            self._snapshot,
            running=tuple(self._running.values()),
            waiting=tuple(self._waiting.values()),
            projects=self._projects,
            reserved=last.reservations,
        )

    def _pass_time(self, batch: int, is_soon: bool, until: float) -> int:
        """Until so many have ended, or those that were warned have gone."""
        gone: list[str] = []
        then = self._now + self._policy.grace_s if is_soon else math.inf
        while self._ends and len(gone) < batch and self._ends[0][0] <= min(then, until):
            end, run_id, started_at = heappop(self._ends)
            run = self._running.get(run_id)
            if run is not None and run.started_at == started_at:
                gone.append(run_id)
                if len(gone) == batch:
                    then = end
        self._use(min(then, until))
        for run_id in gone:
            del self._running[run_id]
        return len(gone)

    def _use(self, now: float) -> None:
        """What projects hold until then they have used."""
        half_life_s, passed = self._policy.half_life_s, now - self._now
        self._now = now
        if not self._projects or not passed:
            return
        held: dict[str, Amount] = {}
        for run in self._running.values():
            nodes, want = len(run.placement.shares), run.want
            gpus, cpus, memory = held.get(run.project, (0.0, 0.0, 0.0))
            held[run.project] = (
                gpus + want.gpus * nodes,
                cpus + want.cpus * nodes,
                memory + want.memory_bytes * nodes,
            )
        self._projects = tuple(
            replace(
                project,
                usage=accrue(
                    project.usage,
                    dominant_share(held.get(project.name, (0.0, 0.0, 0.0)), self._whole),
                    max(0.0, now - max(project.usage_at, now - passed)),
                    half_life_s,
                ),
                usage_at=now,
            )
            for project in self._projects
        )

    def _start(self, start: Start) -> None:
        run = begun(self._waiting.pop(start.run_id), start, self._now)
        self._running[run.run_id] = run
        heappush(self._ends, (self._end_of(run), run.run_id, run.started_at))

    def _stop(self, run_id: str) -> None:
        run = self._running.pop(run_id)
        self._waiting[run_id] = Waiting(
            run_id=run_id,
            project=run.project,
            user=run.user,
            priority=run.priority,
            wants=(run.want,),
            submitted_at=run.submitted_at,
            queued_at=self._now,
            served=run.attained(self._now),
            preemptions=run.preemptions + 1,
            before=run.placement,
        )

    def _end_of(self, run: Running) -> float:
        if run.stopping:
            return self._now + self._policy.grace_s
        so_far = index.lasted(run, self._now)
        lasts_s = self._lasts_s.get(run.run_id)
        if lasts_s is None:
            lasts_s = self._lasts_s[run.run_id] = self._learned.lasts(
                so_far.gpus, so_far.project, so_far.user, so_far.seconds, self._draw.chance(run.run_id)
            )
        left_s = lasts_s - so_far.seconds
        back_s = run.restart_s if run.served and run.started_at == self._now else 0.0
        end = self._now + max(_SHORTEST_S, left_s) + back_s
        return end if run.ends_at is None else max(self._now + _SHORTEST_S, min(end, run.ends_at))
