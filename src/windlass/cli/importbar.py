"""The bar of `import`: runs, and bytes that were sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from windlass.core.quantities import format_size


class Bar:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("runs", total=0, sent="", points="", run="")
        self._lock = threading.Lock()
        self._found = self._sent = self._points = 0

    def found(self, runs: int) -> None:
        with self._lock:
            self._found += runs
        self._progress.update(self._task, total=self._found)

    def ended(self, run: str) -> None:
        self._progress.update(self._task, advance=1, run=escape(run[:40]))

    def sent(self, size: int) -> None:
        with self._lock:
            self._sent += size
        self._progress.update(self._task, sent=format_size(self._sent))

    def logged(self, points: int) -> None:
        with self._lock:
            self._points += points
        self._progress.update(self._task, points=f"{self._points:,} points")


@contextmanager
def shown_progress() -> Iterator[Bar]:
    columns = (
        TextColumn("copying"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("runs  {task.fields[points]}  {task.fields[sent]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[run]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bar(progress)
