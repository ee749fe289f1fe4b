"""Histories that are asked for together: of one metric for many runs, which MLflow answers about as fast as for one, or
of many metrics of a run, which our own servers tell. Histories that are too long for that are asked for one by one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile

from windlass.imports.records import Point, Run

MOST_POINTS = 25_000  # of one answer, as MLflow has it
_RUNS_AT_ONCE = 50
_MOST_GROUPS = 8  # that are remembered: more than are copied at a time

# Points by run, or None if there are more than one answer holds.
Fetch = Callable[[Sequence[str], str], dict[str, list[Point]] | None]

_KEYS_AT_ONCE = 2_000


def together(
    keys: Iterable[str],
    fetch: Callable[[Sequence[str]], Mapping[str, Sequence[Point]]],
    alone: Callable[[str], Iterable[Point]],
) -> Iterator[tuple[str, Iterable[Point]]]:
    """Of these metrics in their order. `fetch` tells some of those that it is asked for, from the first on: as many as
    fit into an answer."""
    left = list(keys)
    while left:
        found = fetch(left[:_KEYS_AT_ONCE])
        told = list(takewhile(found.__contains__, left))
        for key in told:
            yield key, found[key]
        if not told:
            yield left[0], alone(left[0])
        left = left[max(1, len(told)) :]


class Histories:
    """For any number of threads."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._lock = threading.Lock()
        self._groups: OrderedDict[int, _Group] = OrderedDict()
        self._next = 0

    def announce(self, runs: Sequence[Run]) -> None:
        """Runs whose histories may be asked for next."""
        for start in range(0, len(runs), _RUNS_AT_ONCE):
            group = _Group({run.id: frozenset(run.metrics) for run in runs[start : start + _RUNS_AT_ONCE]})
            with self._lock:
                self._groups[self._next] = group
                self._next += 1
                while len(self._groups) > _MOST_GROUPS:
                    self._groups.popitem(last=False)

    def take(self, run_id: str, key: str) -> list[Point] | None:
        """None: ask for this one by itself."""
        with self._lock:
            group = next((group for group in self._groups.values() if run_id in group.keys_of), None)
        return None if group is None else group.take(run_id, key, self._fetch)


class _Group:
    def __init__(self, keys_of: dict[str, frozenset[str]]) -> None:
        self.keys_of = keys_of
        self._lock = threading.Lock()
        self._found: dict[str, dict[str, list[Point]] | None] = {}
        self._being_fetched: dict[str, threading.Lock] = {}

    def take(self, run_id: str, key: str, fetch: Fetch) -> list[Point] | None:
        with self._lock:
            turn = self._being_fetched.setdefault(key, threading.Lock())
        with turn:
            if key not in self._found:
                having = [one for one, keys in self.keys_of.items() if key in keys]
                self._found[key] = fetch(having, key) if len(having) > 1 else None
            found = self._found[key]
        # Once: who asks again wants to know what is there now.
        return None if found is None else found.pop(run_id, None)
