"""What uploaders send where nodes share no folder: each its own files, of the checkpoint that the first node names.

    wanted.json                              the name of the checkpoint that all are to send
    step-0000000100-1f2e3d4c/part-00001.json a node's part of the manifest, when its files are there; or null

The first node makes one manifest of all parts when they are there, and only then is there a checkpoint.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path

from windlass.blobs.bucket import Bucket
from windlass.blobs.stored import step_of
from windlass.core.errors import NotFound
from windlass.core.manifest import Manifest, parse_manifest, render_manifest
from windlass.job.checkpoint.folder import Damaged, Saved, list_parts, stored_name_of_part
from windlass.job.checkpoint.stores.reports import say
from windlass.job.checkpoint.stores.settings import UploaderSettings
from windlass.job.checkpoint.stores.throttle import Throttle
from windlass.job.checkpoint.stores.uploading import Vanished, send_files
from windlass.job.checkpoint.stores.whole import WholeSender

WANTED = "wanted.json"
_GONE = b"null"
_LOOK_EVERY_S = 1.0
_PATIENCE_S = 600.0  # with other nodes, after our own part is there
_LAST_PATIENCE_S = 120.0  # once training is over


@dataclass(frozen=True, slots=True, kw_only=True)
class _Underway:
    name: str
    manifest: Manifest
    began: float
    sent_bytes: int


class FirstNodeSender(WholeSender):
    look_every_s = _LOOK_EVERY_S

    def __init__(self, settings: UploaderSettings, bucket: Bucket, throttle: Throttle) -> None:
        super().__init__(settings, bucket, throttle)
        self._nodes = settings.nodes
        self._underway: _Underway | None = None

    def _send_next(self, *, closing: bool) -> bool:
        if self._underway is None:
            parts = _parts(self._folder)
            name = self._chosen({name: saved.manifest for name, saved in parts.items()}, closing=closing)
            if name is None:
                return False
            began = time.monotonic()
            self._bucket.put(WANTED, json.dumps(name).encode())
            sent = self._send(name, parts[name])
            if sent is None:
                return True
            manifest = parts[name].manifest
            self._bucket.put(part_key(name, 0), render_manifest(manifest).encode())
            self._underway = _Underway(name=name, manifest=manifest, began=began, sent_bytes=sent)
        return self._gather(self._underway, closing=closing)

    def _gather(self, underway: _Underway, *, closing: bool) -> bool:
        there = self._bucket.list(underway.name)
        keys = [part_key(underway.name, node) for node in range(1, self._nodes)]
        waited_s = time.monotonic() - underway.began
        if any(key.partition("/")[2] not in there for key in keys):
            if waited_s > (_LAST_PATIENCE_S if closing else _PATIENCE_S):
                say("trouble", why=f"not all nodes have sent their part of {underway.name} within {waited_s:.0f} s")
                self._give_up(underway)
                return True
            if closing:
                time.sleep(_LOOK_EVERY_S / 2)
            return closing
        parts = [self._bucket.get(key) for key in keys]
        if _GONE in parts:
            self._give_up(underway)
            return True
        files = [*underway.manifest.files, *(file for part in parts for file in parse_manifest(part).files)]
        whole = replace(underway.manifest, files=tuple(files))
        self._commit(underway.name, whole, took_s=waited_s, sent_bytes=underway.sent_bytes)
        self._underway = None
        return True

    def _give_up(self, underway: _Underway) -> None:
        self._spoilt.add(underway.name)
        self._underway = None


class OtherNodeSender:
    look_every_s = _LOOK_EVERY_S

    def __init__(self, settings: UploaderSettings, bucket: Bucket, throttle: Throttle) -> None:
        self._folder = Path(settings.folder)
        self._bucket = bucket
        self._throttle = throttle
        self._node = settings.node
        self._done: set[str] = set()

    def look(self, *, closing: bool) -> bool:
        parts = _parts(self._folder)
        newest = next(iter(parts), None)
        # Who closes does not wait to be asked: the first node wants the last one as well.
        name = newest if closing else self._wanted()
        if name is None or name in self._done:
            return False
        if name in parts:
            content = self._send(name, parts[name])
        elif newest is not None and (step_of(newest) or 0) > (step_of(name) or 0):
            content = _GONE  # it was removed, or never came to be
        else:
            return False  # its savers are still at work
        self._bucket.put(part_key(name, self._node), content)
        self._done.add(name)
        return True

    def tidy(self) -> None:
        """That is the first node's."""

    def _wanted(self) -> str | None:
        try:
            return str(json.loads(self._bucket.get(WANTED)))
        except (NotFound, ValueError):
            return None

    def _send(self, name: str, saved: Saved) -> bytes:
        try:
            send_files(self._bucket, name, saved.path, saved.manifest.files, self._throttle)
        except Vanished:
            return _GONE
        except Damaged as damage:
            say("damaged", folder=str(saved.path), step=saved.manifest.step, why=str(damage))
            return _GONE
        return render_manifest(saved.manifest).encode()


def part_key(name: str, node: int) -> str:
    return f"{name}/part-{node:05d}.json"


def _parts(folder: Path) -> dict[str, Saved]:
    """By their names in the store, newest first."""
    return {stored_name_of_part(saved.path): saved for saved in list_parts(folder)}
