"""Going on from the newest good checkpoint, or from a copy in the nodes' memory that is as new.

All ranks verify what is on the disk together, and fill the live tensors meanwhile. If it is damaged they are filled
again from one before; if there is none, they are not touched until all has been found good.
"""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.core.errors import InvalidInput
from windlass.job.checkpoint.disk import Disk
from windlass.job.checkpoint.folder import (
    Saved,
    by_newer,
    list_saved,
    list_set_aside,
    refuse_newer,
    set_aside,
    unreadable,
)
from windlass.job.checkpoint.loading import Contents, Part
from windlass.job.checkpoint.memory import MemoryCopy, NodeMemory
from windlass.job.checkpoint.peers import Peers
from windlass.job.checkpoint.recalling import as_saved, find_common, is_whole, recall
from windlass.job.checkpoint.state import TrainingState
from windlass.job.checkpoint.verifying import Needed, open_contents, verify
from windlass.job.session import session

if TYPE_CHECKING:
    from windlass.job.checkpoint.stores.tier import StoreTier


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A checkpoint that is good. `left`: what this rank has still to read from `contents`; None: it cannot, or it does
    not fit."""

    saved: Saved
    contents: Contents | None
    left: list[Part] | None


class NoWayBack(InvalidInput):
    """Tensors hold bytes of a damaged checkpoint, and no other one is good."""

    code = "no_way_back"


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
    live = LiveState(state)
    was_there = False  # what is no good
    while True:
        copy = find_common(memory, state, peers)
        found = find_good(folder, peers, store, than=copy.step if copy is not None else None, live=live)
        if found is not None or copy is None or memory is None or is_whole(copy, memory, peers):
            break
        was_there = True  # it is gone now, and there may be another
    if found is None and copy is not None and memory is not None:
        before = _common(folder, peers, than=copy.step)
        if recall(copy, memory, state, peers):
            saved_step = before[0].manifest.step if before else 0
            return Restored(saved=as_saved(copy, memory), in_memory=copy, saved_step=saved_step)
        found = find_good(folder, peers, store, live=live)
    if found is None:
        live.give_up(folder)
        if peers.rank == 0:
            _tell_of_none(folder, was_there=was_there)
        return None
    saved, contents = found.saved, found.contents or open_contents(found.saved)
    state.make_room(contents.shapes)
    contents.fill(contents.parts(state.tensors()) if found.left is None else found.left)
    state.give_back(contents.blob, saved.manifest.world_size)
    return Restored(saved=saved, in_memory=None, saved_step=saved.manifest.step)


def _tell_of_none(folder: Path, *, was_there: bool) -> None:
    """Training begins at the first step, and not because it is new."""
    aside = list_set_aside(folder)
    if not aside and not was_there:
        return
    kept = f"; the newest that was set aside is {aside[0].name}" if aside else ""
    text = f"no checkpoint in {folder} is good: beginning at the first step{kept}"
    session().alert("checkpoint-lost", text)
    if session().run_id is not None:
        print(f"windlass: {text}", file=sys.stderr, flush=True)


class LiveState:
    """The tensors of a state while checkpoints are tried one after the other."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self._is_changed = False  # the same on all ranks

    def needs(self, contents: Contents, *, world_size: int, is_last: bool) -> Needed:
        """What is to be read for them, of what so many ranks saved. `is_last`: there is nothing else that they could be
        filled from, so those that hold something are spared until all is found good."""
        self._state.undo_room()  # made for another one, that was damaged
        held = self._state.tensors().keys()
        spared = held if is_last and not self._is_changed else set()
        try:
            self._state.make_room(contents.shapes)
            parts = contents.parts(self._state.tensors())
        except InvalidInput:
            self._state.undo_room()
            raise
        blobs = (contents.blob_file(rank) for rank in self._state.asks_for(world_size))
        return Needed(
            parts=[
                replace(part, start=None if part.name in spared else part.start, is_held=part.name in held)
                for part in parts
            ],
            blob_files=frozenset(name for name in blobs if name is not None),
        )

    def is_damaged(self, *, is_begun: bool) -> None:
        """What was asked for is of no use. `is_begun`: some of it came to tensors that held something, of any rank."""
        self._state.undo_room()
        self._is_changed = self._is_changed or is_begun
        # The error knew all frames on its way, and they know the room that was made, as large as what is made next.
        gc.collect()

    def give_up(self, folder: Path) -> None:
        """There is no good one."""
        self._state.undo_room()
        if self._is_changed:
            raise NoWayBack(
                f"no checkpoint in {folder} is good, and what was read of them is in the model; they are set aside: "
                "start again, to begin at the first step"
            )


def find_good(
    folder: Path,
    peers: Peers,
    store: StoreTier | None = None,
    *,
    than: int | None = None,
    live: LiveState | None = None,
) -> Found | None:
    """The newest checkpoint that is what its manifest says, if it is newer `than` that step. Damaged ones are set
    aside, with an alert, in the folder that has them so: where nodes share none, others may have them whole. Raises
    NewerManifest if the newest is one that only a newer Windlass can read.

    `live`: is filled with it, but for what is `left`."""
    near = store.neighbours.ranks if store is not None else tuple(range(peers.world_size))
    while True:
        if store is not None:
            store.bring_newer(than=than)  # also what was set aside: the store may have it as it was
        # Looked for again every time: what was set aside is gone.
        there = _common(folder, peers, than=than)
        if not there or (than is not None and there[0].manifest.step <= than):
            return None
        saved, is_last = there[0], len(there) == 1 and than is None
        needs = (
            partial(live.needs, world_size=saved.manifest.world_size, is_last=is_last) if live is not None else _nothing
        )
        outcome = verify(saved, peers, near, needs)
        problems = outcome.problems
        if not any(problems):
            return Found(saved=saved, contents=outcome.contents, left=outcome.left)
        if live is not None:
            live.is_damaged(is_begun=outcome.is_begun)
        here = next((problems[rank] for rank in near if problems[rank]), None)
        if peers.rank == 0:
            first = next(problem for problem in problems if problem)
            has_more = len(there) > 1 or than is not None or store is not None
            what_now = "looking for one before it" if has_more else "there is no other one"
            session().alert("checkpoint-damaged", f"{first}; {what_now}", step=saved.manifest.step)
            if here is not None:
                session().checkpoint_corrupt(saved.path, here)
        if here is not None and peers.rank == near[0]:
            set_aside(saved.path, Disk())
        peers.gather(None)  # nobody reads the folder again before it is set aside


def _nothing(_: Contents) -> Needed:
    return Needed()


def _common(folder: Path, peers: Peers, *, than: int | None = None) -> list[Saved]:
    """Those that are in all folders, as they are in this rank's, newest first: one that a node lacks is not damaged.
    Raises NewerManifest on all ranks if one has such, newer than these and than that step."""
    if peers.rank == 0:
        for path, problem in unreadable(folder).items():
            session().alert("checkpoint-damaged", f"{path.name}: {problem}; looking for another one")
            set_aside(path, Disk())
    mine = {saved.manifest.step: saved for saved in list_saved(folder)}
    told = peers.gather((list(mine), by_newer(folder)))
    common = set.intersection(*(set(steps) for steps, _ in told))
    refuse_newer((path for _, paths in told for path in paths), than=max(*common, than or 0, 0))
    return [mine[step] for step in sorted(common, reverse=True)]
