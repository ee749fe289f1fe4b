"""The uploader: a process, one per folder, that sends what becomes visible there to the store, and clears up there.

It goes by the folder and the store alone, so it does not matter which of its forerunners died where. It says what it
did on its standard output, a JSON line each, and ends when its standard input does, after it has sent what is due.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from windlass.blobs.bucket import Bucket, open_bucket
from windlass.blobs.stored import list_stored, remove_stored, step_of, stored_name
from windlass.core.errors import WindlassError
from windlass.core.manifest import MANIFEST, Manifest, render_manifest
from windlass.job.checkpoint.folder import Damaged, Saved, list_saved
from windlass.job.checkpoint.interval import Interval
from windlass.job.checkpoint.retention import Keep, decide_retention
from windlass.job.checkpoint.stores.policy import decide_upload
from windlass.job.checkpoint.stores.settings import UploaderSettings, read_settings
from windlass.job.checkpoint.stores.throttle import Throttle
from windlass.job.checkpoint.stores.uploading import Vanished, send_files

LOCK = ".uploader.lock"
_LOOK_EVERY_S = 0.5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _LAST_PAUSE_S = 0.25, 60.0, 1.0  # the last: while somebody waits for us
_PATIENCE_S = 120.0  # with a store that is away, once training is over
_TIDYING_S = 15.0  # with one that lets nothing be removed: all is sent
# Nothing was written to it for so long, by the store's own clock: nobody goes on with it.
_DEAD_AFTER_S = 3600.0


class Uploader:
    def __init__(self, settings: UploaderSettings, bucket: Bucket, throttle: Throttle) -> None:
        self._folder = Path(settings.folder)
        self._bucket = bucket
        self._throttle = throttle
        self._every = None if settings.every is None else Interval(settings.every)
        self._keep = Keep(**settings.keep)
        self._stored: dict[str, Manifest] | None = None  # by name; None: not looked yet
        self._is_tidy = False
        self._spoilt: set[str] = set()  # whose files are not what was saved: not to be tried again

    def look(self) -> bool:
        """Send what is to be sent now; False if there is nothing. Raises Unavailable and its like."""
        if self._stored is None:
            self._stored = {one.name: one.manifest for one in list_stored(self._bucket)}
            say("there", names=sorted(self._stored))
            for name, manifest in self._stored.items():
                say("stored", name=name, manifest=asdict(manifest))
        names = {stored_name(saved.manifest): saved for saved in list_saved(self._folder)}
        there = {name: saved.manifest for name, saved in names.items() if name not in self._spoilt}
        chosen = decide_upload(there.values(), self._stored.values(), self._every)
        if chosen is None:
            return False
        self._send(names[stored_name(chosen)])
        return True

    def _send(self, saved: Saved) -> None:
        assert self._stored is not None
        name, began = stored_name(saved.manifest), time.monotonic()
        try:
            sent = send_files(self._bucket, name, saved.path, saved.manifest.files, self._throttle)
        except Vanished:
            return
        except Damaged as damage:
            self._spoilt.add(name)
            remove_stored(self._bucket, name)
            say("damaged", folder=str(saved.path), step=saved.manifest.step, why=str(damage))
            return
        self._bucket.put(f"{name}/{MANIFEST}", render_manifest(saved.manifest).encode())
        self._stored[name] = saved.manifest
        took_s = time.monotonic() - began
        say("stored", name=name, manifest=asdict(saved.manifest), took_s=took_s, sent_bytes=sent)
        self._is_tidy = False

    def tidy(self) -> None:
        """Remove by the store's own retention, and what was never finished. The newest stays: `decide_retention`."""
        if self._is_tidy or self._stored is None:
            return
        names = {id(manifest): name for name, manifest in self._stored.items()}
        for manifest in decide_retention(self._stored.values(), self._keep, now=time.time()):
            name = names[id(manifest)]
            remove_stored(self._bucket, name)
            del self._stored[name]
            say("removed", name=name)
        now = None
        for name in self._bucket.folders():
            if step_of(name) is None or name in self._stored or not self._stored:
                continue
            now = now or self._clock_of_the_store()
            written = [found.modified for found in self._bucket.list(name).values()]
            if now - max(written, default=now) > _DEAD_AFTER_S:
                remove_stored(self._bucket, name)
        self._is_tidy = True

    def _clock_of_the_store(self) -> float:
        """As of its last word to us, which is never ahead of it."""
        assert self._stored
        return max(
            found.modified for name in self._stored for key, found in self._bucket.list(name).items() if key == MANIFEST
        )


def say(what: str, **more: Any) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more; what is in the store speaks for itself
        os.write(1, json.dumps({"what": what, **more}).encode() + b"\n")


def run(uploader: Uploader, closing: threading.Event, lock: Path) -> int:
    """Until `closing`, and until all that is due is in the store then. 1: it could not be brought there."""
    while not _locked(lock):
        if closing.wait(_LOOK_EVERY_S):
            time.sleep(_LOOK_EVERY_S)  # another one is at it, and ends with what it does: its rank is gone
    pause_s, since = _FIRST_PAUSE_S, None
    while True:
        was_closing, is_sent = closing.is_set(), False
        try:
            while uploader.look():
                pause_s, since = _FIRST_PAUSE_S, None
            is_sent = True
            uploader.tidy()
            if was_closing:
                return 0
            pause_s, since = _FIRST_PAUSE_S, None
            closing.wait(_LOOK_EVERY_S)
        except (WindlassError, OSError) as error:
            since = since or time.monotonic()
            say("trouble", why=str(getattr(error, "message", error)))
            if was_closing and time.monotonic() - since > (_TIDYING_S if is_sent else _PATIENCE_S):
                return 0 if is_sent else 1
            if closing.wait(pause_s):
                time.sleep(min(pause_s, _LAST_PAUSE_S))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


_held: list[int] = []  # the lock, until this process ends


def _locked(path: Path) -> bool:
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return False
    except OSError:
        pass  # a file system without locks: two would do the same work twice, and nothing wrong
    _held.append(fd)
    return True


def _be_humble() -> None:
    """Of the processor and the disk only what nobody else wants."""
    os.nice(19)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        number = {"x86_64": 251, "aarch64": 30}.get(os.uname().machine)
        if number is not None:
            libc.syscall(number, 1, 0, 3 << 13)  # ioprio_set(this process, idle)
    except OSError:
        pass


def main(text: str) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the trainer is told by these, and tells us
    settings = read_settings(text)
    closing = threading.Event()
    throttle = Throttle(settings.bytes_per_s)

    def listen() -> None:
        sys.stdin.buffer.read()
        throttle.lift()
        closing.set()

    threading.Thread(target=listen, daemon=True).start()
    _be_humble()
    bucket = open_bucket(settings.address, endpoint=settings.endpoint, environ=os.environ, retries=settings.retries)
    code = run(Uploader(settings, bucket, throttle), closing, Path(settings.folder) / LOCK)
    os._exit(code)  # the thread may still be reading
