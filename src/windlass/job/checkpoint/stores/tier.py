"""A run's stores as its ranks see them: what is newer there is brought into the folder; what is saved goes there."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.blobs.bucket import Bucket, open_bucket
from windlass.blobs.stored import Stored, lay_aside, list_stored, refuse_newer
from windlass.core.errors import StoreRefused, Unavailable, WindlassError
from windlass.core.manifest import NEWER_HINT, NewerManifest
from windlass.job.checkpoint.disk import Disk
from windlass.job.checkpoint.folder import Damaged, discard, list_saved, saved_by
from windlass.job.checkpoint.peers import Peers
from windlass.job.checkpoint.retention import Keep
from windlass.job.checkpoint.stores.choice import StoreChoice, choose_stores
from windlass.job.checkpoint.stores.fetching import fetch_files, show
from windlass.job.checkpoint.stores.neighbours import Neighbours, find_neighbours
from windlass.job.checkpoint.stores.reports import told_of
from windlass.job.checkpoint.stores.sending import Sending, close_all
from windlass.job.session import session

_PATIENCE_S = 300.0  # with a store that is away, when the folder has nothing
_PAUSE_S = 2.0


def open_tier(wanted: Mapping[str, Any], folder: Path, keep: Keep, peers: Peers) -> StoreTier | None:
    """Every rank calls it; None if the run wants no store."""
    choices = choose_stores(wanted, session().run_id, keep=keep)
    return StoreTier(choices, folder, peers) if choices else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Newer:
    """What is to be brought from the store of this number; or why none can be told of; or that the newest is one that
    only a newer Windlass can read."""

    number: int = 0
    stored: Stored | None = None
    trouble: str | None = None
    by_newer: str | None = None


class StoreTier:
    """Every rank has one, for all stores of the run; `bring_newer` is for all of them together."""

    def __init__(self, choices: Sequence[StoreChoice], folder: Path, peers: Peers) -> None:
        self._folder = folder
        self._buckets = [open_bucket(one.address, endpoint=one.endpoint, environ=os.environ) for one in choices]
        self._peers = peers
        folder.mkdir(parents=True, exist_ok=True)
        self.neighbours: Neighbours = find_neighbours(folder, peers)
        node, nodes = self.neighbours.number, self.neighbours.count
        self._settings = [one.settings(folder, node=node, nodes=nodes) for one in choices]
        self._sendings: list[Sending] = []

    @property
    def group(self) -> list[int]:
        """The ranks that share this one's folder; empty if all do."""
        return [] if self.neighbours.share_one_folder else list(self.neighbours.ranks)

    def bring_newer(self, *, than: int | None = None) -> None:
        """Have in every folder what a store has newer than the first rank's folder (and than that step), if anything.
        What is damaged there is laid aside. Raises Unavailable if a store cannot be asked and there is nothing to go
        on from: no such step, no folder of all ranks with a checkpoint, and none in another store. Raises NewerManifest
        if the newest is one that only a newer Windlass can read."""
        while True:
            here = self._newest_here(than)
            found: _Newer = self._peers.from_first(self._newer(here, than) if self._peers.rank == 0 else _Newer())
            if found.by_newer is not None:
                raise NewerManifest(found.by_newer, hint=NEWER_HINT)
            if found.trouble is not None:
                hint = "nothing is known of the run's checkpoints, so it does not begin anew"
                raise Unavailable(found.trouble, hint=hint)
            if found.stored is None:
                return
            bucket, stored = self._buckets[found.number], found.stored
            damage = self._fetch(bucket, stored)
            if damage is None:
                return
            if self._peers.rank == 0:
                session().alert("checkpoint-damaged", f"{damage}; going on from another", step=stored.manifest.step)
                session().checkpoint_corrupt(bucket.at(stored.name), damage)
                lay_aside(bucket, stored.name)

    def start(self) -> None:
        """Begin to send, on the ranks that do that."""
        if not self.neighbours.is_lead:
            return
        if not self.neighbours.share_one_folder:
            for old in saved_by(session().run_id, list_saved(self._folder))[1:]:
                discard(old.path, Disk())  # brought here once; nothing else would remove it
        self._sendings = [Sending(settings) for settings in self._settings]

    def look(self) -> None:
        for sending in self._sendings:
            sending.look()

    def close(self, *, wait_s: float | None) -> None:
        """Have sent what is due; wait for that, or leave it to be finished alone."""
        close_all(self._sendings, wait_s=wait_s)
        self._sendings = []

    def _newest_here(self, than: int | None) -> int | None:
        """The newest step that is in all folders, or `than`."""
        mine = {saved.manifest.step for saved in list_saved(self._folder)}
        if not self.neighbours.share_one_folder:
            mine = set.intersection(*self._peers.gather(mine))
        return max(mine if than is None else {*mine, than}, default=None)

    def _newer(self, here: int | None, than: int | None) -> _Newer:
        # All ranks have it: in the folder, or in their nodes' memory.
        has_another = here is not None and (self.neighbours.share_one_folder or than is not None)
        deadline, told = time.monotonic() + _PATIENCE_S, set[int]()
        while True:
            try:
                there, troubles = self._look_into_all(here or 0)
            except NewerManifest as error:
                return _Newer(by_newer=error.message)
            for number in troubles.keys() - told:
                session().alert("checkpoint-store", told_of(troubles[number]))
            told |= troubles.keys()
            newest = max(there, key=_age, default=None)
            if newest is not None and newest.stored and (here is None or newest.stored.manifest.step > here):
                return newest
            if not troubles or has_another:
                return _Newer()
            refused = next((error for error in troubles.values() if isinstance(error, StoreRefused)), None)
            if refused is not None or time.monotonic() > deadline:
                return _Newer(trouble=told_of(refused or next(iter(troubles.values()))))
            time.sleep(_PAUSE_S)

    def _look_into_all(self, here: int) -> tuple[list[_Newer], dict[int, WindlassError]]:
        """The newest of each store that answers, and what is wrong with the others. Raises NewerManifest."""
        found, troubles = list[_Newer](), dict[int, WindlassError]()
        for number, bucket in enumerate(self._buckets):
            try:
                stored = list_stored(bucket)[:1]
                refuse_newer(bucket, than=max([here, *(one.manifest.step for one in stored)]))
                found += [_Newer(number=number, stored=one) for one in stored]
            except NewerManifest:
                raise
            except WindlassError as error:
                troubles[number] = error
        return found, troubles

    def _fetch(self, bucket: Bucket, stored: Stored) -> str | None:
        """Each rank brings its share of the files into its folder. What is wrong with them in the store, if so."""
        began, mine, size = time.monotonic(), self.neighbours, 0
        damage: str | None = None
        trouble: str | None = None
        try:
            files = stored.manifest.files[mine.place :: mine.size]
            size = fetch_files(bucket, stored, files, self._folder, Disk(), near=mine.near(stored))
        except Damaged as error:
            damage = str(error)
        except (WindlassError, OSError) as error:
            trouble = str(getattr(error, "message", error))
        everyone = self._peers.gather((damage, trouble, size))
        if found := next((one for one, _, _ in everyone if one), None):
            return found
        if found := next((one for _, one, _ in everyone if one), None):
            raise Unavailable(f"{bucket.at(stored.name)} could not be fetched: {found}")
        if mine.is_lead:
            show(stored, self._folder, Disk())
        self._peers.gather(None)  # nobody looks before it is there
        if session().is_main:
            came = float(sum(count for *_, count in everyone))
            took = {"checkpoint_fetch_s": time.monotonic() - began, "checkpoint_fetch_bytes": came}
            session().note_metrics(stored.manifest.step, took)
        return None


def _age(found: _Newer) -> tuple[int, float, int]:
    """Of equals the first store's: it is the nearest, if they were named in that order."""
    assert found.stored is not None
    return found.stored.manifest.step, found.stored.manifest.created_at, -found.number
