"""status.json: who supervises a node and which processes are its ranks."""

from __future__ import annotations

import os
import time
from typing import Any, Mapping

from . import kernel, layout
from .files import write_json
from .recovery import MOST_KEPT


class Status:
    def __init__(self, node_dir: str, **facts: Any) -> None:
        self._path = os.path.join(node_dir, layout.STATUS)
        own = kernel.stat(os.getpid())
        assert own is not None
        self._content: dict[str, Any] = {
            "pid": own.pid,
            "pid_start": own.start,
            "boot_id": kernel.boot_id(),
            "sid": os.getsid(0),
            "state": "starting",
            "started_at": time.time(),
            "ranks": [],
            **facts,
        }
        self._unsaved = False

    def create(self) -> None:
        """Before anything else is done: from here on this node counts as started."""
        write_json(self._path, self._content)

    def begin_generation(self, generation: int) -> None:
        """The ranks there were are dead; those to come are added. Saved with the next change."""
        self._content.update(generation=generation, ranks=[])

    def add_recovery(self, entry: Mapping[str, Any]) -> None:
        self.change(recoveries=[*self._content.get("recoveries", []), dict(entry)][-MOST_KEPT:])

    def add_rank(self, rank: int, pid: int) -> None:
        """Saved with the next change: ranks are started at once, and one file is enough for all."""
        found = kernel.stat(pid)
        self._content["ranks"].append({"rank": rank, "pid": pid, "pid_start": found.start if found else 0})

    def change(self, **changes: Any) -> None:
        self._content.update(changes)
        self._unsaved = True
        self.retry()

    def retry(self) -> None:
        if not self._unsaved:
            return
        try:
            write_json(self._path, self._content)
            self._unsaved = False
        except OSError:
            pass  # a full disk; tried again with the next sample
