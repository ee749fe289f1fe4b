"""Sums of the copies in a node's memory: made by the saver while it has nothing to do, compared before a copy is used.

Training waits for none of it, so a copy has no sum in its first moments. One that is used then is taken on trust: few
seconds have passed in which its bytes could have changed. CRC-32, for it is to be quick. Loads no torch.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from windlass.job.checkpoint.memory import MemoryCopy, NodeMemory

_LOOK_EVERY_S = 0.25
_SETTLED_S = 0.25  # one that is not so old may be replaced by the next step's
_REST = 50.0  # times as long as a sum took of the processor: it is to cost 2% of one at most
_AT_THE_END_S = 2.0  # the next attempt may be waiting for this process
_CHUNK = 1 << 20  # what is summed is still in the core's own cache then


class Summing:
    """Of one rank's copies, in its saver."""

    def __init__(self, memory: NodeMemory, rank: int) -> None:
        self._memory = memory
        self._rank = rank
        self._rests_until = 0.0

    def work_until(self, is_wanted: Callable[[float], bool]) -> None:
        """`is_wanted`: whether there is something else to do, within so many seconds."""
        while not is_wanted(_LOOK_EVERY_S):
            if time.monotonic() >= self._rests_until:
                began = time.thread_time()
                self.sum_newest(settled_s=_SETTLED_S, give_up=lambda: is_wanted(0.0))
                self._rests_until = time.monotonic() + _REST * (time.thread_time() - began)

    def finish(self) -> None:
        """The rank is dead, and what it has left may have to wait for a while."""
        deadline = time.monotonic() + _AT_THE_END_S
        self.sum_newest(give_up=lambda: time.monotonic() > deadline)

    def sum_newest(self, *, settled_s: float | None = None, give_up: Callable[[], bool] = lambda: False) -> None:
        """Of those that are so old (None: of all), if it has no sums yet."""
        before = math.inf if settled_s is None else time.time() - settled_s
        there = [copy for copy in self._memory.copies(self._rank) if copy.created_at <= before]
        newest = max(there, key=lambda copy: copy.created_at, default=None)
        if newest is not None and self._memory.sums(newest) is None:
            with contextlib.suppress(OSError):  # no room for it, or it is gone
                self._sum(newest, give_up)

    def _sum(self, copy: MemoryCopy, give_up: Callable[[], bool]) -> None:
        sums: dict[str, int] = {}
        with self._memory.arena(copy.rank, copy.slot).open("rb", buffering=0) as file:
            for name, start, size in copy.files:
                found = _sum_of(file.fileno(), start, size, give_up)
                if found is None or copy not in self._memory.copies(self._rank):
                    return  # what was read may be half of another
                sums[name] = found
        self._memory.keep_sums(copy, sums)


def damage_of(memory: NodeMemory, copy: MemoryCopy, *, threads: int = 1) -> str | None:
    """What is wrong with a rank's copy, in words; None: nothing, as far as sums say."""
    sums = memory.sums(copy)
    if sums is None:
        return None
    path = memory.arena(copy.rank, copy.slot)
    try:
        with path.open("rb", buffering=0) as file, ThreadPoolExecutor(threads) as pool:
            found = pool.map(lambda one: _sum_of(file.fileno(), one[1], one[2]), copy.files)
            bad = [name for (name, _, _), total in zip(copy.files, found, strict=True) if total != sums.get(name)]
    except OSError as error:
        return f"{path.name} cannot be read: {error}"
    return f"the bytes of {bad[0]} in {path.name} are not those that were copied" if bad else None


def _sum_of(fd: int, start: int, size: int, give_up: Callable[[], bool] = lambda: False) -> int | None:
    total, buffer = 0, memoryview(bytearray(_CHUNK))
    for at in range(start, start + size, _CHUNK):
        if give_up():
            return None
        count = os.preadv(fd, [buffer[: min(_CHUNK, start + size - at)]], at)
        total = zlib.crc32(buffer[:count], total)
    return total
