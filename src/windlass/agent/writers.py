"""Which event files are a run's own. In its own folder all are; other folders may be shared with other runs, here and
on other machines, and of what is in them only what the run's processes have begun counts.

Most writers put their host and process into a file's name. Of other files it counts who has them open.
"""

from __future__ import annotations

import os
import socket
from typing import Iterable, List, Set, Tuple

from . import eventfile, kernel


class Writers:
    def __init__(self, run_dir: str, roots: Iterable[str]) -> None:
        self._folder = os.path.realpath(run_dir)
        self._host = socket.gethostname()
        self._pids: Set[int] = set()
        self._is_alone = all(self._is_inside(root) for root in roots)

    def add(self, pid: int) -> None:
        self._pids.add(pid)

    def look(self) -> None:
        """Processes that are there now; later they may be gone."""
        if not self._is_alone:
            self._pids.update(kernel.descendants(os.getpid()))

    def choose(self, paths: Iterable[str]) -> List[str]:
        """Those that are the run's."""
        chosen: List[str] = []
        doubtful: List[str] = []
        for path in paths:
            is_own = self._is_inside(path) or eventfile.writer(os.path.basename(path), self._host) in self._pids
            (chosen if is_own else doubtful).append(path)
        if doubtful:
            opened = _open_files([os.getpid(), *kernel.descendants(os.getpid())])
            chosen += [path for path in doubtful if _identity(path) in opened]
        return chosen

    def _is_inside(self, path: str) -> bool:
        return (os.path.realpath(path) + os.sep).startswith(self._folder + os.sep)


def _open_files(pids: Iterable[int]) -> Set[Tuple[int, int]]:
    """Event files that these processes have open."""
    found: Set[Tuple[int, int]] = set()
    for pid in pids:
        folder = "/proc/%d/fd" % pid
        try:
            for name in os.listdir(folder):
                link = os.path.join(folder, name)
                if "tfevents" in os.readlink(link):
                    found.add(_identity(link))
        except OSError:
            continue  # gone meanwhile, or not ours to look into
    return found


def _identity(path: str) -> Tuple[int, int]:
    try:
        held = os.stat(path)
    except OSError:
        return -1, -1
    return held.st_dev, held.st_ino
