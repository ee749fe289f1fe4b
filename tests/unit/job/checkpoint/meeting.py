"""Ranks as threads of one process, which agree as `Peers` do: the n-th word of one meets the n-th of all others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from windlass.job.checkpoint.peers import Peers

Value = TypeVar("Value")
_PATIENCE_S = 30.0


class Meeting:
    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._rounds: list[dict[int, tuple[str, Any]]] = []
        self._changed = threading.Condition()
        self._failed = False

    def say(self, number: int, rank: int, kind: str, value: Any) -> None:
        with self._changed:
            while len(self._rounds) <= number:
                self._rounds.append({})
            self._rounds[number][rank] = (kind, value)
            self._changed.notify_all()

    def hear(self, number: int) -> list[Any]:
        with self._changed:
            said = self._rounds[number]
            self._changed.wait_for(lambda: self._failed or len(said) == self.world_size, _PATIENCE_S)
            assert len(said) == self.world_size, f"alone with {said}"
            assert len({kind for kind, _ in said.values()}) == 1, f"ranks speak of different things: {said}"
            return [said[rank][1] for rank in range(self.world_size)]

    def run(self, work: Callable[[ThreadPeers], Value]) -> list[Value]:
        """What every rank came to."""

        def alone(rank: int) -> Value:
            try:
                return work(ThreadPeers(self, rank))
            except BaseException:
                with self._changed:
                    self._failed = True
                    self._changed.notify_all()
                raise

        with ThreadPoolExecutor(self.world_size) as pool:
            return list(pool.map(alone, range(self.world_size)))


class ThreadPeers(Peers):
    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.rank, self.world_size = rank, meeting.world_size
        self._meeting = meeting
        self._said = 0

    def gather(self, mine: Value) -> list[Value]:
        return self._begin("gather", mine)()

    def from_first(self, mine: Value) -> Value:
        first: Value = self._begin("from_first", mine)()[0]
        return first

    def largest(self, values: list[int]) -> list[int]:
        return self.begin_largest(values).result()

    def begin_largest(self, values: list[int]) -> Any:
        return _Exchange(self._begin(f"largest of {len(values)}", list(values)))

    def send(self, content: Any, rank: int) -> None:
        sent = self._begin("send", content)()[rank]
        if rank != self.rank:
            content.copy_(sent)

    def _begin(self, kind: str, value: Any) -> Callable[[], list[Any]]:
        number, self._said = self._said, self._said + 1
        self._meeting.say(number, self.rank, kind, value)
        return lambda: self._meeting.hear(number)


class _Exchange:
    def __init__(self, hear: Callable[[], list[Any]]) -> None:
        self._hear = hear

    def result(self) -> list[int]:
        return [max(column) for column in zip(*self._hear(), strict=True)]
