"""What is deleted some time after an attempt is over: its folder, once its logs are in the blobs, and what its nodes
told; and blobs that no artifact names. A thread of its own, in servers that move runs forward; several may do the
same. Working folders are the user's.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from windlass.agent import layout
from windlass.core.clock import Clock
from windlass.core.errors import WindlassError
from windlass.db.database import Database
from windlass.engines.folders.plans import attempt_dir
from windlass.nodes.store import delete_nodes
from windlass.runs.retention import load_archived
from windlass.tracking.storedlogs import LogPlace, load_size

log = logging.getLogger(__name__)

_SWEEP_EVERY_S = 1_800.0
_AT_ONCE = 500
_STOP_WITHIN_S = 5.0


class Retention:
    def __init__(
        self,
        db: Database,
        clock: Clock,
        *,
        roots: Sequence[Path],
        keep_s: float,
        collect: Callable[[], int] = lambda: 0,
    ) -> None:
        """`roots` are the folders that engines keep folders of attempts in; `collect` deletes what artifacts have left
        behind, and says how much."""
        self._db = db
        self._clock = clock
        self._roots = roots
        self._keep_s = keep_s
        self._collect = collect
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._kept: set[str] = set()  # warned of

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_STOP_WITHIN_S)

    def _run(self) -> None:
        # Not at once: servers that are started again and again have better things to do in their first moments.
        while not self._stopping.wait(min(_SWEEP_EVERY_S, max(1.0, self._keep_s))):
            try:
                self.sweep()
            except WindlassError as error:
                log.warning("old attempts cannot be cleared away now: %s", error)
            except Exception:
                # The thread is a boundary: what is left is found the next time.
                log.exception("old attempts cannot be cleared away now")

    def sweep(self) -> None:
        """Delete everything whose time has come. Broken off anywhere, the next one goes on."""
        before = self._clock.now() - self._keep_s
        self._forget_nodes(before)
        if count := self._collect():
            log.info("deleted %d blobs that no artifact names any more", count)
        for root in self._roots:
            found = list(_attempts_in(root))
            for start in range(0, len(found), _AT_ONCE):
                with self._db.read() as tx:
                    archived = load_archived(tx, found[start : start + _AT_ONCE], before=before)
                for attempt_id in archived:
                    if self._stopping.is_set():
                        return
                    self._remove(attempt_dir(root, attempt_id), attempt_id)

    def _forget_nodes(self, before: float) -> None:
        while not self._stopping.is_set():
            with self._db.write() as tx:
                if not delete_nodes(tx, before=before, limit=_AT_ONCE):
                    return

    def _remove(self, folder: Path, attempt_id: str) -> None:
        try:
            if newer := self._unarchived(folder, attempt_id):
                self._keep(attempt_id, f"{newer} has more than the archive")
                return
            shutil.rmtree(folder)
        except FileNotFoundError:
            return  # somebody else is at it
        except (OSError, ValueError) as error:  # among them folders that somebody else has put there
            self._keep(attempt_id, str(error))

    def _unarchived(self, folder: Path, attempt_id: str) -> str | None:
        """A log of which not all is in the blobs, whatever the record says."""
        with self._db.read() as tx:
            for node in sorted(folder.glob("node-*")):
                place = LogPlace(attempt_id, int(node.name.removeprefix("node-")))
                for path in node.iterdir():
                    is_log = layout.rank_of_log(path.name) is not None or path.name in layout.NODE_LOGS
                    if is_log and path.stat().st_size > (load_size(tx, place, path.name) or 0):
                        return f"{node.name}/{path.name}"
        return None

    def _keep(self, attempt_id: str, why: str) -> None:
        if attempt_id not in self._kept:
            log.warning("the folder of attempt %s stays: %s", attempt_id, why)
        self._kept.add(attempt_id)


def _attempts_in(root: Path) -> Iterator[str]:
    """The ids of all attempts that have a folder here."""
    for run in _names(root / "runs"):
        for number in _names(root / "runs" / run / "attempts"):
            yield f"{run}.{number}"


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
