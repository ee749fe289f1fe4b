"""The uploader process as the rank that started it sees it, and what it says told to the record."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import windlass
from windlass.core.manifest import Tier, parse_manifest
from windlass.job.checkpoint.folder import list_parts, list_saved
from windlass.job.checkpoint.stores.settings import UploaderSettings
from windlass.job.session import Session, session

_START = (
    "import sys; sys.path.insert(0, sys.argv[2]); "
    "from windlass.job.checkpoint.stores.uploader import main; main(sys.argv[1])"
)
_NEXT_AFTER_S = 30.0  # one that died is followed by another, but not at once and again


class Sending:
    def __init__(self, settings: UploaderSettings, *, mine: Session | None = None) -> None:
        self._settings = settings
        self._session = mine or session()
        self._is_closing = False
        self._stored_step: int | None = None  # the newest that is known to be there
        self._trouble: str | None = None  # with the store, since something was last stored
        self._begin()

    @property
    def pid(self) -> int:
        return self._process.pid

    def look(self) -> None:
        """Hear what it has done, without waiting."""
        if not self._hear(0.0) and time.monotonic() - self._began_at > _NEXT_AFTER_S:
            self._process.wait()
            self._begin()

    def finish(self) -> None:
        """Tell it to end after what is due."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._process.poll() is not None:
            self._hear(0.0)
            self._begin()  # it was killed: what is due is still due
        assert self._process.stdin is not None
        self._process.stdin.close()

    def close(self, *, wait_s: float | None) -> None:
        """Have it end after what is due; wait for that, or leave it to finish alone."""
        self.finish()
        deadline = None if wait_s is None else time.monotonic() + wait_s
        while self._hear(None if deadline is None else max(0.0, deadline - time.monotonic())):
            if deadline is not None and time.monotonic() >= deadline:
                _left_alone.append(self._process)
                self._tell_of_missing("the run had to end, and its node goes on sending for as long as it may")
                return
        if code := self._process.wait():
            self._tell_of_missing(self._trouble or f"the uploader ended with {code}")
        self._shut()

    def _tell_of_missing(self, why: str) -> None:
        """A kind of its own: what was said of the store before must not hold it back."""
        list_newest = list_saved if self._settings.nodes == 1 else list_parts
        newest = max((saved.manifest.step for saved in list_newest(Path(self._settings.folder))), default=None)
        if newest is None or newest == self._stored_step:
            return
        what = f"step {newest}" if self._settings.node == 0 else f"the part of step {newest} that is on this node"
        known = "" if self._stored_step is None else f", the newest there is step {self._stored_step}"
        message = f"{what} is not in {self._settings.address}{known}: {why}"
        self._session.alert("checkpoint-not-stored", message)

    def _begin(self) -> None:
        root = str(Path(windlass.__file__).resolve().parents[1])
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, self._settings.as_json(), root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a signal to the rank's group is not for it
        )
        self._said = b""
        self._began_at = time.monotonic()

    def _hear(self, wait_s: float | None) -> bool:
        """Take what it says, waiting for a first word if there is none. False: it has ended."""
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        while select.select([fd], [], [], wait_s)[0]:
            data = os.read(fd, 1 << 16)
            if not data:
                return False
            *lines, self._said = (self._said + data).split(b"\n")
            for line in lines:
                self._tell(json.loads(line))
            wait_s = 0.0
        return True

    def _tell(self, said: dict[str, Any]) -> None:
        mine, what = self._session, said["what"]
        if what == "stored":
            manifest = parse_manifest(json.dumps(said["manifest"]))
            mine.checkpoint(self._at(said["name"]), manifest, tier=Tier.STORE)
            self._trouble, self._stored_step = None, max(manifest.step, self._stored_step or 0)
            if "took_s" in said:
                took = {"checkpoint_upload_s": said["took_s"], "checkpoint_upload_bytes": float(said["sent_bytes"])}
                mine.note_metrics(manifest.step, took)
        elif what == "there":
            mine.checkpoints_there(self._settings.address, [self._at(name) for name in said["names"]])
        elif what == "removed":
            mine.checkpoint_removed(self._at(said["name"]))
        elif what == "damaged":
            mine.alert("checkpoint-damaged", f"{said['why']}; it does not go to the store", step=said["step"])
            mine.checkpoint_corrupt(said["folder"], said["why"])
        else:
            self._trouble = said["why"]
            mine.alert("checkpoint-store", said["why"])

    def _at(self, name: str) -> str:
        return f"{self._settings.address}/{name}"

    def _shut(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()


def close_all(sendings: Sequence[Sending], *, wait_s: float | None) -> None:
    """At once: none waits for another."""
    deadline = None if wait_s is None else time.monotonic() + wait_s
    for sending in sendings:
        sending.finish()
    for sending in sendings:
        sending.close(wait_s=None if deadline is None else max(0.0, deadline - time.monotonic()))


_left_alone: list[subprocess.Popen[bytes]] = []  # or Python would warn of children that nobody waits for
