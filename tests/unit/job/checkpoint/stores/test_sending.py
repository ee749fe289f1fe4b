"""What the record is told of a store that does not take what is due."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

pytest.importorskip("obstore")

from tests.unit.job.checkpoint.images import order, save
from tests.unit.job.checkpoint.stores.uploads import settings
from windlass.blobs.bucket import open_bucket
from windlass.blobs.stored import list_stored
from windlass.core.errors import StoreRefused, Unavailable
from windlass.job.checkpoint.stores import uploader
from windlass.job.checkpoint.stores.sending import Sending
from windlass.job.session import Session
from windlass.tracking.points import parse_spool


class Failing:
    """A sender whose store does not answer, so many times."""

    look_every_s = 0.0

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def look(self, *, closing: bool) -> bool:  # noqa: ARG002
        if self.errors:
            raise self.errors.pop(0)
        return False

    def tidy(self) -> None:
        pass


def run(sender: Failing, folder: Path) -> int:
    closing = threading.Event()
    closing.set()
    return uploader.run(sender, closing, folder / "lock")


def said(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [json.loads(line)["why"] for line in capfd.readouterr().out.splitlines()]


def test_one_outage_is_told_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploader, "_LAST_PAUSE_S", 0.0)
    assert run(Failing(*(Unavailable(f"away {number}") for number in range(5))), tmp_path) == 0
    assert said(capfd) == ["away 0"]


def test_what_is_refused_is_not_waited_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    refused = StoreRefused("s3://b refuses access", hint="check the credentials")
    assert run(Failing(*[refused] * 1000), tmp_path) == 1
    assert said(capfd) == ["s3://b refuses access; check the credentials"]


def test_the_last_word_says_which_step_is_not_there(tmp_path: Path) -> None:
    """However many alerts there were of the store before."""
    mine = Session({"WINDLASS_NODE_DIR": str(tmp_path), "WINDLASS_RUN_ID": "r1"})
    save(order(tmp_path / "folder", 1))
    sending = Sending(settings(tmp_path / "folder", f"file://{tmp_path}/store"), mine=mine)
    sending.close(wait_s=None)
    save(order(tmp_path / "folder", 2, save_id="bbbb"))
    (tmp_path / "blocked").write_text("no folder")
    sending = Sending(settings(tmp_path / "folder", f"file://{tmp_path}/blocked/store"), mine=mine)
    for number in range(20):
        mine.alert("checkpoint-store", f"away {number}")
    sending.close(wait_s=None)
    told = parse_spool((tmp_path / "metrics-0.jsonl").read_bytes(), 0).alerts
    assert told[-1].kind == "checkpoint-not-stored"
    assert told[-1].message.startswith(f"step 2 is not in file://{tmp_path}/blocked/store: [Errno 20] Not a directory")
    assert sum(alert.kind == "checkpoint-not-stored" for alert in told) == 1


def test_who_has_to_end_says_what_is_not_there_yet(tmp_path: Path) -> None:
    mine = Session({"WINDLASS_NODE_DIR": str(tmp_path), "WINDLASS_RUN_ID": "r1"})
    folder = tmp_path / "folder"
    save(order(folder, 1))
    wanted = settings(folder, f"file://{tmp_path}/store")
    uploader._locked(uploader.lock_of(wanted))  # another one is at it, so this one waits
    sending = Sending(wanted, mine=mine)
    try:
        sending.close(wait_s=0.0)
    finally:
        os.close(uploader._held.pop())
    assert sending._process.wait(60) == 0  # left alone it does what is due
    sending._shut()
    assert list_stored(open_bucket(wanted.address, environ={}))[0].manifest.step == 1
    (told,) = parse_spool((tmp_path / "metrics-0.jsonl").read_bytes(), 0).alerts
    assert told.message.startswith(f"step 1 is not in file://{tmp_path}/store: the run had to end")
