"""The search for TensorBoard's event files. A working folder may hold a million files of data: a search begins with the
folders that event files are usually in, and goes on where it was broken off."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Deque, Iterable, Iterator, List, NamedTuple, Optional, Set

from . import eventfile

_MOST_FOLDERS = 50_000
_DEEPEST = 8
_PASSED_OVER = ("__pycache__", "node_modules", "site-packages", "venv", "env")
_LIKELY = (
    "runs",
    "logs",
    "log",
    "lightning_logs",
    "tb_logs",
    "tb",
    "tensorboard",
    "events",
    "output",
    "outputs",
    "results",
    "experiments",
    "checkpoints",
)


class Search:
    def __init__(self, roots: List[str]) -> None:
        self._roots = roots
        self._walk: Optional[Iterator[str]] = None
        self.completed = 0  # how often all folders were gone through

    def begin(self, known: Iterable[str]) -> None:
        """From the top, in folders of these files first."""
        self._walk = _walk(self._roots, sorted({os.path.dirname(path) for path in known}))

    @property
    def is_under_way(self) -> bool:
        return self._walk is not None

    def look(self, *, since: int, known: Iterable[str], seconds: float) -> List[str]:
        """Event files that were begun since then, as far as it comes."""
        if self._walk is None:
            self.begin(known)
        assert self._walk is not None
        deadline = time.monotonic() + seconds
        found: List[str] = []
        for path in self._walk:
            if path and (eventfile.began_at(os.path.basename(path)) or 0) >= since:
                found.append(path)
            if time.monotonic() >= deadline:
                return found
        self._walk = None
        self.completed += 1
        return found


class _Folder(NamedTuple):
    path: str
    depth: int
    is_likely: bool


def _walk(roots: List[str], first: List[str]) -> Iterator[str]:
    """Event files, and nothing ("") for every other entry, so that who asks can leave at any of them."""
    begin = [*first, *(os.path.join(root, name) for root in roots for name in _LIKELY)]
    likely: Deque[_Folder] = deque(_Folder(path, 1, True) for path in begin if not os.path.islink(path))
    others: Deque[_Folder] = deque(_Folder(root, 0, False) for root in roots)
    seen: Set[str] = set()
    while (likely or others) and len(seen) < _MOST_FOLDERS:
        folder = (likely or others).popleft()
        if folder.path in seen:
            continue
        seen.add(folder.path)
        try:
            with os.scandir(folder.path) as entries:
                for entry in entries:
                    if eventfile.began_at(entry.name) is not None:
                        yield entry.path if entry.is_file(follow_symlinks=False) else ""
                        continue
                    if folder.depth < _DEEPEST and _is_worth_a_look(entry):
                        is_likely = folder.is_likely or entry.name in _LIKELY
                        below = _Folder(entry.path, folder.depth + 1, is_likely)
                        (likely if is_likely else others).append(below)
                    yield ""
        except OSError:
            continue  # not there yet, or not for us


def _is_worth_a_look(entry: "os.DirEntry[str]") -> bool:
    name = entry.name
    return not name.startswith(".") and name not in _PASSED_OVER and entry.is_dir(follow_symlinks=False)
