"""What the uploader sends where all ranks share a folder: whole checkpoints, `WholeSender`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from windlass.blobs.bucket import Bucket
from windlass.blobs.stored import is_by_newer, list_stored, remove_stored, step_of, stored_name
from windlass.core.manifest import MANIFEST, Manifest, render_manifest
from windlass.job.checkpoint.folder import Damaged, Saved, list_saved
from windlass.job.checkpoint.interval import Interval
from windlass.job.checkpoint.retention import Keep, decide_retention
from windlass.job.checkpoint.stores.policy import decide_upload
from windlass.job.checkpoint.stores.reports import say
from windlass.job.checkpoint.stores.settings import UploaderSettings
from windlass.job.checkpoint.stores.throttle import Throttle
from windlass.job.checkpoint.stores.uploading import Vanished, send_files

# Nothing was written to it for so long, by the store's own clock: nobody goes on with it.
_DEAD_AFTER_S = 3600.0


class WholeSender:
    look_every_s = 0.5

    def __init__(self, settings: UploaderSettings, bucket: Bucket, throttle: Throttle) -> None:
        self._folder = Path(settings.folder)
        self._bucket = bucket
        self._throttle = throttle
        self._every = None if settings.every is None else Interval(settings.every)
        self._keep = Keep(**settings.keep)
        self._stored: dict[str, Manifest] | None = None  # by name; None: not looked yet
        self._is_tidy = False
        self._spoilt: set[str] = set()  # whose files are not what was saved: not to be tried again

    def look(self, *, closing: bool) -> bool:
        """Send what is to be sent now; False if there is nothing. Raises Unavailable and its like."""
        if self._stored is None:
            self._learn()
        return self._send_next(closing=closing)

    def _learn(self) -> None:
        """What is in the store: more than we have sent, for an uploader of an attempt before may still be at work."""
        known = self._stored or {}
        found = {one.name: one.manifest for one in list_stored(self._bucket, known)}
        if self._stored is None:
            say("there", names=sorted(found))
        self._stored = found
        for name in sorted(found.keys() - known.keys()):
            say("stored", name=name, manifest=asdict(found[name]))

    def _send_next(self, *, closing: bool) -> bool:
        names = {stored_name(saved.manifest): saved for saved in list_saved(self._folder)}
        name = self._chosen({name: saved.manifest for name, saved in names.items()}, closing=closing)
        if name is None:
            return False
        began = time.monotonic()
        sent = self._send(name, names[name])
        if sent is not None:
            self._commit(name, names[name].manifest, took_s=time.monotonic() - began, sent_bytes=sent)
        return True

    def _chosen(self, there: Mapping[str, Manifest], *, closing: bool) -> str | None:
        """The last one of a run goes whatever the interval says, also if it was saved by an interval."""
        assert self._stored is not None
        good = {id(manifest): name for name, manifest in there.items() if name not in self._spoilt}
        able = [manifest for manifest in there.values() if id(manifest) in good]
        chosen = decide_upload(able, self._stored.values(), None if closing else self._every)
        return None if chosen is None else good[id(chosen)]

    def _send(self, name: str, saved: Saved) -> int | None:
        """How many bytes went over; None: this one will not come to be in the store."""
        try:
            return send_files(self._bucket, name, saved.path, saved.manifest.files, self._throttle)
        except (Vanished, Damaged) as damage:
            if isinstance(damage, Damaged) or (saved.path / MANIFEST).exists():  # else it was removed as a whole
                self._spoilt.add(name)
                remove_stored(self._bucket, name)
                say("damaged", folder=str(saved.path), step=saved.manifest.step, why=str(damage))
            return None

    def _commit(self, name: str, manifest: Manifest, *, took_s: float, sent_bytes: int) -> None:
        assert self._stored is not None
        self._bucket.put(f"{name}/{MANIFEST}", render_manifest(manifest).encode())
        self._stored[name] = manifest
        say("stored", name=name, manifest=asdict(manifest), took_s=took_s, sent_bytes=sent_bytes)
        self._is_tidy = False

    def tidy(self) -> None:
        """Remove by the store's own retention, and what was never finished. The newest stays: `decide_retention`."""
        if self._is_tidy or self._stored is None:
            return
        self._learn()
        names = {id(manifest): name for name, manifest in self._stored.items()}
        for manifest in decide_retention(self._stored.values(), self._keep, now=time.time()):
            name = names[id(manifest)]
            remove_stored(self._bucket, name)
            del self._stored[name]
            say("removed", name=name)
        self._is_tidy = True  # what is left of the dead, if it cannot be removed now, is removed after the next one
        self._collect_garbage()

    def _collect_garbage(self) -> None:
        assert self._stored is not None
        now = None
        for name in self._bucket.folders():
            if step_of(name) is None or name in self._stored or not self._stored:
                continue
            now = now or self._clock_of_the_store()
            written = [found.modified for found in self._bucket.list(name).values()]
            if now - max(written, default=now) > _DEAD_AFTER_S and not is_by_newer(self._bucket, name):
                remove_stored(self._bucket, name)

    def _clock_of_the_store(self) -> float:
        """As of its last word to us, which is never ahead of it."""
        assert self._stored
        return max(
            found.modified for name in self._stored for key, found in self._bucket.list(name).items() if key == MANIFEST
        )
