"""A run's store as its ranks see it: what is newer there is brought into the folder, and what is saved goes there."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from windlass.blobs.bucket import open_bucket
from windlass.blobs.stored import Stored, lay_aside, list_stored
from windlass.core.errors import Unavailable, WindlassError
from windlass.job.checkpoint.disk import Disk
from windlass.job.checkpoint.folder import Damaged, discard, list_saved
from windlass.job.checkpoint.peers import Peers
from windlass.job.checkpoint.retention import Keep
from windlass.job.checkpoint.stores.choice import StoreChoice, choose_store
from windlass.job.checkpoint.stores.fetching import fetch_files, show
from windlass.job.checkpoint.stores.neighbours import Neighbours, find_neighbours
from windlass.job.checkpoint.stores.sending import Sending
from windlass.job.checkpoint.stores.settings import UploaderSettings
from windlass.job.session import session

_PATIENCE_S = 300.0  # with a store that is away, when the folder has nothing
_PAUSE_S = 2.0


def open_tier(wanted: Mapping[str, Any], folder: Path, keep: Keep, peers: Peers) -> StoreTier | None:
    """Every rank calls it; None if the run wants no store."""
    choice = choose_store(wanted, session().run_id)
    return None if choice is None else StoreTier(choice, folder, keep, peers)


class StoreTier:
    """Every rank has one; `bring_newer` is for all of them together."""

    def __init__(self, choice: StoreChoice, folder: Path, keep: Keep, peers: Peers) -> None:
        self._folder = folder
        self._bucket = open_bucket(choice.address, endpoint=choice.endpoint, environ=os.environ)
        self._peers = peers
        folder.mkdir(parents=True, exist_ok=True)
        self.neighbours: Neighbours = find_neighbours(folder, peers)
        self._settings = UploaderSettings(
            folder=str(folder),
            address=self._bucket.address,
            endpoint=choice.endpoint,
            every=choice.every,
            keep=asdict(keep if choice.keep is None else replace(keep, last=choice.keep)),
            bytes_per_s=choice.bytes_per_s,
            node=self.neighbours.number,
            nodes=self.neighbours.count,
        )
        self._sending: Sending | None = None

    @property
    def group(self) -> list[int]:
        """The ranks that share this one's folder; empty if all do."""
        return [] if self.neighbours.share_one_folder else list(self.neighbours.ranks)

    def bring_newer(self, *, than: int | None = None) -> None:
        """Have in every folder what the store has newer than the first rank's folder (and than that step), if
        anything. What is damaged there is laid aside. Raises Unavailable if the store cannot be asked and there is
        nothing to go on from: no such step, and no folder of all ranks with a checkpoint."""
        while True:
            here = self._newest_here(than)
            stored, trouble = self._peers.from_first(self._newer(here, than) if self._peers.rank == 0 else (None, None))
            if trouble is not None:
                raise Unavailable(trouble, hint="nothing is known of the run's checkpoints, so it does not begin anew")
            if stored is None:
                return
            damage = self._fetch(stored)
            if damage is None:
                return
            if self._peers.rank == 0:
                session().alert("checkpoint-damaged", f"{damage}; going on from another", step=stored.manifest.step)
                session().checkpoint_corrupt(self._bucket.at(stored.name), damage)
                lay_aside(self._bucket, stored.name)

    def start(self) -> None:
        """Begin to send, on the ranks that do that."""
        if not self.neighbours.is_lead:
            return
        if not self.neighbours.share_one_folder:
            for old in list_saved(self._folder)[1:]:
                discard(old.path, Disk())  # brought here once; nothing else would remove it
        self._sending = Sending(self._settings)

    def look(self) -> None:
        if self._sending is not None:
            self._sending.look()

    def close(self, *, wait_s: float | None) -> None:
        """Have sent what is due; wait for that, or leave it to be finished alone."""
        if self._sending is not None:
            self._sending.close(wait_s=wait_s)
            self._sending = None

    def _newest_here(self, than: int | None) -> int | None:
        """The newest step that is in all folders, or `than`."""
        mine = {saved.manifest.step for saved in list_saved(self._folder)}
        if not self.neighbours.share_one_folder:
            mine = set.intersection(*self._peers.gather(mine))
        return max(mine if than is None else {*mine, than}, default=None)

    def _newer(self, here: int | None, than: int | None) -> tuple[Stored | None, str | None]:
        """What to fetch, or why it cannot be told."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                newest = next(iter(list_stored(self._bucket)), None)
                return (newest if newest and (here is None or newest.manifest.step > here) else None), None
            except WindlassError as error:
                session().alert("checkpoint-store", error.message)
                if here is not None and (self.neighbours.share_one_folder or than is not None):
                    return None, None  # all ranks have that: in the folder, or in their nodes' memory
                if time.monotonic() > deadline:
                    return None, error.message
                time.sleep(_PAUSE_S)

    def _fetch(self, stored: Stored) -> str | None:
        """Each rank brings its share of the files into its folder. What is wrong with them in the store, if so."""
        began, mine, size = time.monotonic(), self.neighbours, 0
        damage: str | None = None
        trouble: str | None = None
        try:
            files = stored.manifest.files[mine.place :: mine.size]
            size = fetch_files(self._bucket, stored, files, self._folder, Disk(), near=mine.near(stored))
        except Damaged as error:
            damage = str(error)
        except (WindlassError, OSError) as error:
            trouble = str(getattr(error, "message", error))
        everyone = self._peers.gather((damage, trouble, size))
        if found := next((one for one, _, _ in everyone if one), None):
            return found
        if found := next((one for _, one, _ in everyone if one), None):
            raise Unavailable(f"{self._bucket.at(stored.name)} could not be fetched: {found}")
        if mine.is_lead:
            show(stored, self._folder, Disk())
        self._peers.gather(None)  # nobody looks before it is there
        if session().is_main:
            came = float(sum(count for *_, count in everyone))
            took = {"checkpoint_fetch_s": time.monotonic() - began, "checkpoint_fetch_bytes": came}
            session().note_metrics(stored.manifest.step, took)
        return None
