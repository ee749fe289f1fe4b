"""Launches under way: several at once on engines that can bear it, so that one that takes long keeps neither the others
nor the pass waiting.

What is under way is the launching thread's alone: until its end was taken, the loop asks the engine nothing about it.
Nothing here must outlive the process; an attempt whose launch was broken off is found absent, and launched again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from windlass.runs.records import AttemptRecord, RunRecord
from windlass.runs.retry import Ended

_QUEUED_PER_THREAD = 4  # the others wait in the record, where they can be cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchEnd:
    run: RunRecord
    attempt: AttemptRecord
    earlier: Sequence[Ended]
    error: Exception | None


@dataclass(slots=True, kw_only=True)
class _UnderWay:
    run: RunRecord
    attempt: AttemptRecord
    earlier: Sequence[Ended]
    future: Future[None]


@dataclass(slots=True, kw_only=True)
class _Lane:
    """The threads of one engine."""

    threads: ThreadPoolExecutor
    most: int
    under_way: dict[str, _UnderWay] = field(default_factory=dict)


class Launches:
    """Not thread-safe: one controller loop owns it. Only `ended`, which it calls, comes from other threads."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._lanes: dict[str, _Lane] = {}

    def begin(
        self,
        run: RunRecord,
        attempt: AttemptRecord,
        earlier: Sequence[Ended],
        launch: Callable[[], None],
        *,
        at_once: int,
    ) -> None:
        """Unless there are enough under way on this engine: the next pass begins it then."""
        lane = self._lane(attempt.engine, at_once)
        if attempt.id in lane.under_way or len(lane.under_way) >= lane.most:
            return
        future = lane.threads.submit(launch)
        lane.under_way[attempt.id] = _UnderWay(run=run, attempt=attempt, earlier=earlier, future=future)
        future.add_done_callback(lambda _: self._ended())

    def is_under_way(self, attempt: AttemptRecord) -> bool:
        lane = self._lanes.get(attempt.engine)
        return lane is not None and attempt.id in lane.under_way

    def take_ended(self) -> list[LaunchEnd]:
        """Those that have ended since; they are not under way any more."""
        ended = []
        for lane in self._lanes.values():
            for attempt_id, item in list(lane.under_way.items()):
                if item.future.done():
                    del lane.under_way[attempt_id]
                    ended.append(_end_of(item))
        return ended

    def settle(self, within_s: float) -> bool:
        """Begin none of those that wait for a thread; whether the others have come to their end in time."""
        for lane in self._lanes.values():
            for attempt_id, item in list(lane.under_way.items()):
                if item.future.cancel():
                    del lane.under_way[attempt_id]
        left = [item.future for lane in self._lanes.values() for item in lane.under_way.values()]
        return not wait(left, timeout=within_s).not_done

    def close(self) -> None:
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            lane.threads.shutdown(wait=False, cancel_futures=True)

    def _lane(self, engine: str, at_once: int) -> _Lane:
        if engine not in self._lanes:
            threads = ThreadPoolExecutor(at_once, thread_name_prefix=f"launch-{engine}")
            self._lanes[engine] = _Lane(threads=threads, most=_QUEUED_PER_THREAD * at_once)
        return self._lanes[engine]


def _end_of(item: _UnderWay) -> LaunchEnd:
    error = item.future.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
    return LaunchEnd(run=item.run, attempt=item.attempt, earlier=item.earlier, error=error)
