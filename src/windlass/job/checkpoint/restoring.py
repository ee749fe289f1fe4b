"""Going on from the newest good checkpoint, or from a copy in the nodes' memory that is as new.

All ranks verify what is on the disk together before any live tensor is touched.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.core.manifest import Manifest
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
from windlass.job.checkpoint.memory import MemoryCopy, NodeMemory
from windlass.job.checkpoint.peers import Peers
from windlass.job.checkpoint.recalling import as_saved, find_common, recall
from windlass.job.checkpoint.state import TrainingState
from windlass.job.session import session

if TYPE_CHECKING:
    from windlass.job.checkpoint.stores.tier import StoreTier

_MOST_READERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    saved: Saved
    in_memory: MemoryCopy | None  # this rank's copy, if it came from there
    saved_step: int  # the newest that is on the disk too; 0: none


def restore_newest(
    folder: Path,
    state: TrainingState,
    peers: Peers,
    store: StoreTier | None = None,
    memory: NodeMemory | None = None,
) -> Restored | None:
    """What the live objects have the state of now; None if there is nothing, and nothing was changed.

    A copy in the nodes' memory counts if it is as new as what is good on the disk, and in the store.
    """
    copy = find_common(memory, state, peers)
    saved = find_good(folder, peers, store, than=copy.step if copy is not None else None)
    if saved is None and copy is not None and memory is not None:
        before = _newest(folder, peers)
        if recall(copy, memory, state, peers):
            saved_step = before.manifest.step if before is not None else 0
            return Restored(saved=as_saved(copy, memory), in_memory=copy, saved_step=saved_step)
        saved = find_good(folder, peers, store)
    if saved is None:
        return None
    contents = Contents(saved.path)
    state.make_room(contents.shapes)
    contents.read_tensors(state.tensors())
    state.give_back(contents.blob, saved.manifest.world_size)
    return Restored(saved=saved, in_memory=None, saved_step=saved.manifest.step)


def find_good(folder: Path, peers: Peers, store: StoreTier | None = None, *, than: int | None = None) -> Saved | None:
    """The newest checkpoint that is what its manifest says, if it is newer `than` that step. Damaged ones are set
    aside, with an alert, in the folder that has them so: where nodes share none, others may have them whole."""
    near = store.neighbours.ranks if store is not None else tuple(range(peers.world_size))
    while True:
        if store is not None:
            store.bring_newer(than=than)  # also what was set aside: the store may have it as it was
        # Looked for again every time: what was set aside is gone.
        saved = _newest(folder, peers)
        if saved is None or (than is not None and saved.manifest.step <= than):
            return None
        problems = peers.gather(_problem(saved, peers.from_first(saved.manifest), peers))
        if not any(problems):
            return saved
        here = next((problems[rank] for rank in near if problems[rank]), None)
        if peers.rank == 0:
            first = next(problem for problem in problems if problem)
            session().alert("checkpoint-damaged", f"{first}; going on from the one before", step=saved.manifest.step)
            if here is not None:
                session().checkpoint_corrupt(saved.path, here)
        if here is not None and peers.rank == near[0]:
            set_aside(saved.path, Disk())
        peers.gather(None)  # nobody reads the folder again before it is set aside


def _newest(folder: Path, peers: Peers) -> Saved | None:
    """The newest that is in all folders, as it is in this rank's: one that a node lacks is not damaged."""
    if peers.rank == 0:
        for path in unreadable(folder):
            session().alert(
                "checkpoint-damaged", f"the manifest of {path.name} cannot be read; going on from another one"
            )
            set_aside(path, Disk())
    mine = {saved.manifest.step: saved for saved in list_saved(folder)}
    common = set.intersection(*(set(steps) for steps in peers.gather(list(mine))))
    return mine[max(common)] if common else None


def _problem(saved: Saved, first: Manifest, peers: Peers) -> str | None:
    """Each rank reads every world_size-th file, so that together they have read all of them once."""
    if saved.manifest != first:
        return f"{saved.path.name} is another checkpoint on rank {peers.rank} than on the first"
    files = saved.manifest.files[peers.rank :: peers.world_size]
    try:
        check_sizes(saved)
        check_hashes(saved, files, threads=_readers())
    except Damaged as damage:
        return str(damage)
    return None


def _readers() -> int:
    """Two for each core that the rank has for its own: one waits for the disk while the other hashes."""
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return max(2, min(_MOST_READERS, 2 * len(os.sched_getaffinity(0)) // local_ranks))
