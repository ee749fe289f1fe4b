"""Going on from the newest good checkpoint. All ranks verify it together before any live tensor is touched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.job.checkpoint.disk import Disk
from windlass.job.checkpoint.folder import (
    Damaged,
    Saved,
    check_hashes,
    check_sizes,
    list_saved,
    set_aside,
    unreadable,
)
from windlass.job.checkpoint.loading import Contents
from windlass.job.checkpoint.peers import Peers
from windlass.job.checkpoint.state import TrainingState
from windlass.job.session import session

if TYPE_CHECKING:
    from windlass.job.checkpoint.stores.tier import StoreTier


def restore_newest(folder: Path, state: TrainingState, peers: Peers, store: StoreTier | None = None) -> Saved | None:
    """The checkpoint whose state the live objects have now; None if there is none, and nothing was changed."""
    saved = find_good(folder, peers, store)
    if saved is None:
        return None
    contents = Contents(saved.path)
    state.make_room(contents.shapes)
    contents.read_tensors(state.tensors())
    state.give_back(contents.blob, saved.manifest.world_size)
    return saved


def find_good(folder: Path, peers: Peers, store: StoreTier | None = None) -> Saved | None:
    """The newest checkpoint that is what its manifest says. Damaged ones are set aside, with an alert."""
    while True:
        if store is not None:
            store.bring_newer()  # also what was set aside: the store may have it as it was
        # Rank 0 looks again every time: what it set aside is gone from the list.
        saved = peers.from_first(_newest(folder) if peers.rank == 0 else None)
        if saved is None:
            return None
        problems = [problem for problem in peers.gather(_problem(saved, peers)) if problem]
        if not problems:
            return saved
        if peers.rank == 0:
            session().alert(
                "checkpoint-damaged", f"{problems[0]}; going on from the one before", step=saved.manifest.step
            )
            session().checkpoint_corrupt(saved.path, problems[0])
            set_aside(saved.path, Disk())
        peers.gather(None)  # nobody reads the folder again before it is set aside


def _newest(folder: Path) -> Saved | None:
    for path in unreadable(folder):
        session().alert("checkpoint-damaged", f"the manifest of {path.name} cannot be read; going on from another one")
        set_aside(path, Disk())
    return next(iter(list_saved(folder)), None)


def _problem(saved: Saved, peers: Peers) -> str | None:
    """Each rank reads every world_size-th file, so that together they have read all of them once."""
    files = saved.manifest.files[peers.rank :: peers.world_size]
    try:
        check_sizes(saved)
        check_hashes(saved, files, threads=min(8, os.cpu_count() or 1))
    except Damaged as damage:
        return str(damage)
    return None
