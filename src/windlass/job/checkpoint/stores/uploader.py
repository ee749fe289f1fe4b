"""The uploader: a process, one per folder and store, that sends what becomes visible in the one to the other, and
clears up there.

It goes by the folder and the store alone, so it does not matter which of its forerunners died where. It says what it
did on its standard output, a JSON line each, and ends when its standard input does, after it has sent what is due.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Protocol

from windlass.agent.kernel import give_way
from windlass.blobs.bucket import Bucket, open_bucket
from windlass.core.errors import StoreRefused, WindlassError
from windlass.job.checkpoint.stores.gathered import FirstNodeSender, OtherNodeSender
from windlass.job.checkpoint.stores.reports import say, told_of
from windlass.job.checkpoint.stores.settings import UploaderSettings, read_settings
from windlass.job.checkpoint.stores.throttle import Throttle
from windlass.job.checkpoint.stores.whole import WholeSender

_LOOK_EVERY_S = 0.5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _LAST_PAUSE_S = 0.25, 60.0, 0.25  # the last: while somebody waits for us
_PATIENCE_S = 120.0  # with a store that is away, once training is over
_TIDYING_S = 15.0  # with one that lets nothing be removed: all is sent


class Sender(Protocol):
    """Both raise Unavailable and its like while the store is away, and can be called again."""

    look_every_s: float

    def look(self, *, closing: bool) -> bool:
        """Send what is to be sent now; False: there is nothing. `closing`: nothing more will be saved."""
        ...

    def tidy(self) -> None:
        """Remove what is to go from the store."""
        ...


def choose_sender(settings: UploaderSettings, bucket: Bucket, throttle: Throttle) -> Sender:
    if settings.nodes == 1:
        return WholeSender(settings, bucket, throttle)
    kind = FirstNodeSender if settings.node == 0 else OtherNodeSender
    return kind(settings, bucket, throttle)


def run(sender: Sender, closing: threading.Event, lock: Path) -> int:
    """Until `closing`, and until all that is due is in the store then. 1: it could not be brought there."""
    while not _locked(lock):
        if closing.wait(_LOOK_EVERY_S):
            time.sleep(_LOOK_EVERY_S)  # another one is at it, and ends with what it does: its rank is gone
    pause_s, since = _FIRST_PAUSE_S, None
    while True:
        was_closing, is_sent = closing.is_set(), False
        try:
            while sender.look(closing=was_closing):
                pause_s, since = _FIRST_PAUSE_S, None
            is_sent = True
            sender.tidy()
            if was_closing:
                return 0
            pause_s, since = _FIRST_PAUSE_S, None
            closing.wait(sender.look_every_s)
        except (WindlassError, OSError) as error:
            if since is None:  # told once, however often it is tried until the store is back
                since = time.monotonic()
                say("trouble", why=told_of(error))
            if was_closing and time.monotonic() - since > _patience_s(error, is_sent=is_sent):
                return 0 if is_sent else 1
            if closing.wait(pause_s):
                time.sleep(min(pause_s, _LAST_PAUSE_S))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _patience_s(error: Exception, *, is_sent: bool) -> float:
    if is_sent:
        return _TIDYING_S
    return 0.0 if isinstance(error, StoreRefused) else _PATIENCE_S


def lock_of(settings: UploaderSettings) -> Path:
    """Each store of a folder has an uploader of its own."""
    digest = hashlib.sha256(settings.address.encode()).hexdigest()
    return Path(settings.folder) / f".uploader-{digest[:8]}.lock"


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
    give_way(19)
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
    try:
        bucket = open_bucket(settings.address, endpoint=settings.endpoint, environ=os.environ, retries=settings.retries)
        code = run(choose_sender(settings, bucket, throttle), closing, lock_of(settings))
    except (WindlassError, OSError) as error:
        say("trouble", why=told_of(error))
        code = 1
    os._exit(code)  # the thread may still be reading
