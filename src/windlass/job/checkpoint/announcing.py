"""Telling the catalogue what a folder of checkpoints holds: `Announcer`, for one process of a run.

It goes by what can be seen in the folder, so that it does not matter who saved or removed: a process beside this one,
or an attempt that died before it could tell.
"""

from __future__ import annotations

from pathlib import Path

from windlass.job.checkpoint.folder import Saved, by_newer, list_saved
from windlass.job.session import Session, session


class Announcer:
    def __init__(self, folder: Path, *, mine: Session | None = None) -> None:
        self._folder = folder
        self._session = mine or session()
        self._told: dict[Path, float] | None = None  # when each was made: a step can be saved again

    def look(self) -> list[Saved]:
        """Tell of what is new and what is gone since the last look. To be called after a save, and once before the
        first one. Reads one small file per checkpoint."""
        found = list_saved(self._folder)
        there = {saved.path: saved.manifest.created_at for saved in found}
        if self._told is None:
            # Whatever earlier attempts have said; those of a newer Windlass are not gone.
            self._session.checkpoints_there(self._folder, [*there, *by_newer(self._folder)])
        told = self._told or {}
        for path in sorted(told.keys() - there.keys()):
            self._session.checkpoint_removed(path)
        for saved in reversed(found):
            if told.get(saved.path) != saved.manifest.created_at:
                self._session.checkpoint(saved.path, saved.manifest)
        self._told = there
        return found
