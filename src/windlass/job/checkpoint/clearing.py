"""What goes from a folder of checkpoints: by retention after each save, and more where the disk is full and a save must
not be left out. Standard library only.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from windlass.job.checkpoint.disk import Disk
from windlass.job.checkpoint.folder import (
    Damaged,
    Saved,
    check_sizes,
    collect_garbage,
    discard,
    list_parts,
    list_saved,
    list_set_aside,
    saved_by,
)
from windlass.job.checkpoint.retention import Keep, decide_retention

_MOST_PARTS = 3  # of checkpoints that become such in the store; one that is being sent is held open until it is


def clean_up(folder: Path, keep: Keep, disk: Disk, run_id: str | None) -> None:
    """Old checkpoints of that run, and what the dead have left. The save is done: trouble here is the next one's."""
    with contextlib.suppress(OSError):
        for saved in _old(saved_by(run_id, list_saved(folder)), keep):
            discard(saved.path, disk)
        for part in saved_by(run_id, list_parts(folder))[_MOST_PARTS:]:
            discard(part.path, disk)
        collect_garbage(folder, disk)


def make_room(folder: Path, keep: Keep, disk: Disk, run_id: str | None, *, is_last: bool = True) -> list[str]:
    """The names of those that had to go: of that run's all but the newest that is as long as it should be, and the
    best. Unless it `is_last`, those that were to stay for ever stay too: the next save may find room by other means."""
    gone = []
    spared = replace(keep, last=1, every_steps=None if is_last else keep.every_steps, newer_than_s=None)
    with contextlib.suppress(OSError):
        sound = [saved for saved in saved_by(run_id, list_saved(folder)) if _is_sound(saved)]
        old = _old(sound, spared)
        for path in [*list_set_aside(folder), *(saved.path for saved in old)]:
            discard(path, disk)
            gone.append(path.name)
    return gone


def _old(there: Sequence[Saved], keep: Keep) -> list[Saved]:
    saved = {id(one.manifest): one for one in there}
    return [
        saved[id(manifest)] for manifest in decide_retention([one.manifest for one in there], keep, now=time.time())
    ]


def _is_sound(saved: Saved) -> bool:
    try:
        check_sizes(saved)
    except Damaged:
        return False
    return True
