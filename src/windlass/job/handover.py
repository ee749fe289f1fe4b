"""A queue between the thread that makes batches and the loop that takes them, which either of them can end.

It is in every step of a training. Taking what is there costs the loop neither a lock nor, mostly, the waking of a
thread, which takes tens of microseconds and the interpreter besides: a thread that makes all batches in no time rests
until the last one is taken. It holds one more meanwhile, so the loop does not come to wait for it. One that now and
then takes its time, for the next file, keeps the queue full. The first ones say nothing of that: files are opened for
them, memory is pinned and devices are set up, while the loop does the like.

Of light ones that are made quickly on the whole there may be more than of others, and some are left when the thread is
woken: enough for a thread that takes its time, or that a busy machine lets wait for a processor.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, TypeAlias

Item: TypeAlias = tuple[Any, Any, Any]
QUICK_S = 0.001
QUICKER = 4  # times as quick as they are taken is quick as well: the next one is there long before it is wanted
CAREFUL = 1000  # batches after one that was not made quickly
_RECENT = 16  # batches, about, that the mean time of making one is of


class Handover:
    def __init__(self, size: int, of_light: int = 0) -> None:
        """Room for `size`, and for `of_light` of those that are light and quickly made if that is more."""
        self._size = size
        self._of_light = max(size, of_light)
        self._items: deque[Item] = deque()
        self._changed = threading.Condition()
        self._put = 0  # so many so far
        self._taken_in_s = 0.0  # each, while the maker rested last
        self._made_in_s = 0.0  # each, lately
        self._careful = 0  # for so many batches
        self._resting_until: int | None = None  # the maker waits for so few to be left
        self._hungry = False  # the taker waits
        self._closed = False
        self._end: BaseException | None = None  # what comes after the last one

    def put(self, item: Item, made_in_s: float, *, is_light: bool = False) -> bool:
        """Waits for room; False: nobody wants more."""
        self._put += 1
        is_first = self._put <= self._size + 1  # so many are made before the maker first rests
        slow_s = max(QUICK_S, self._taken_in_s / QUICKER)
        if is_first:
            made_in_s = 0.0
        self._made_in_s += (made_in_s - self._made_in_s) / _RECENT
        self._careful = CAREFUL if made_in_s >= slow_s else max(0, self._careful - 1)
        if is_light and not is_first and self._made_in_s < slow_s:
            room, left = self._of_light, self._of_light // 4
        else:
            room, left = self._size, self._size - 1 if self._careful else 0
        if len(self._items) >= room:
            self._rest(left)
        if self._closed:
            return False
        self._items.append(item)
        if self._hungry:
            self._tell()
        return True

    def take(self) -> Item | None:
        """What is there; None: nothing is, or not yet."""
        try:
            item = self._items.popleft()
        except IndexError:
            return None
        # Set before the maker looks for room, and read after room was made: one of the two sees the other.
        until = self._resting_until
        if until is not None and len(self._items) <= until:
            self._tell()
        return item

    def get(self) -> Item:
        """Waits for one, or raises what comes after the last."""
        while (item := self.take()) is None:
            with self._changed:
                self._hungry = True
                self._changed.wait_for(lambda: self._items or self._end is not None or self._closed)
                self._hungry = False
                if not self._items:
                    # Once only: an iterator that has failed is at its end.
                    end, self._end = self._end or StopIteration(), StopIteration()
                    raise end
        return item

    def end(self, reason: BaseException) -> None:
        with self._changed:
            self._end = reason
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()

    def _rest(self, until: int) -> None:
        there, began = len(self._items), time.monotonic()
        with self._changed:
            self._resting_until = until
            self._changed.wait_for(lambda: self._closed or len(self._items) <= until)
            self._resting_until = None
        self._taken_in_s = (time.monotonic() - began) / max(1, there - len(self._items))

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()
