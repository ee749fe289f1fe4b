"""What a program saves by itself: when it is finished, what belongs together, and what had been logged by then."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from windlass.job.checkpoint import watching
from windlass.job.checkpoint.adopting import ADOPTED, Adopter
from windlass.job.checkpoint.folder import list_saved
from windlass.job.checkpoint.logged import Logged
from windlass.job.checkpoint.watching import (
    Signature,
    Watcher,
    decide_finished,
    decide_groups,
    decide_sights,
    matching,
)
from windlass.job.session import Session

There = dict[Path, tuple[int, Signature]]


def signed(at: int, size: int = 1) -> Signature:
    return (("x", size, at),)


def finished(
    there: There, taken: Mapping[Path, Signature], *, settled_s: float, patterns: int = 1, is_over: bool = False
) -> list[list[str]]:
    groups = decide_groups(decide_sights({}, there, 0.0))
    found = decide_finished(groups, taken, patterns, now=settled_s, is_over=is_over)
    return [[path.name for path in group.paths] for group in found]


def test_finished_is_what_has_not_changed_for_a_while() -> None:
    a, b = Path("a1"), Path("b2")
    first = decide_sights({}, {a: (0, signed(20)), b: (0, signed(10))}, 0.0)
    then = decide_sights(first, {a: (0, signed(30)), b: (0, signed(10))}, 2.0)

    def taken_at(now: float, taken: Mapping[Path, Signature], *, is_over: bool = False) -> list[tuple[Path, ...]]:
        found = decide_finished(decide_groups(then), taken, 1, now=now, is_over=is_over)
        return [group.paths for group in found]

    assert taken_at(3.0, {}) == [(b,)]
    assert taken_at(5.0, {}) == [(b,), (a,)]  # the oldest first
    assert taken_at(5.0, {b: then[b].signature}) == [(a,)]
    assert taken_at(2.0, {b: signed(9)}, is_over=True) == [(b,), (a,)]  # written again
    assert decide_groups(decide_sights(then, {a: (0, ())}, 9.0)) == []  # gone


def test_files_of_one_step_wait_for_each_other() -> None:
    model, optim, later = Path("model_10.pt"), Path("optim_10.pt"), Path("model_20.pt")
    both: There = {model: (0, signed(1)), optim: (1, signed(2))}
    assert finished(both, {}, settled_s=3.0, patterns=2) == [["model_10.pt", "optim_10.pt"]]
    assert finished({model: (0, signed(1))}, {}, settled_s=59.0, patterns=2) == []  # the other one is still to come
    assert finished({model: (0, signed(1))}, {}, settled_s=60.0, patterns=2) == [["model_10.pt"]]
    assert finished({model: (0, signed(1))}, {}, settled_s=0.0, patterns=2, is_over=True) == [["model_10.pt"]]
    passed: There = {model: (0, signed(1)), later: (0, signed(3))}
    assert finished(passed, {}, settled_s=3.0, patterns=2) == [["model_10.pt"]]  # nothing comes of it any more
    seen = decide_sights({}, {model: (0, signed(1))}, 0.0)
    seen = decide_sights(seen, both, 2.0)
    assert decide_finished(decide_groups(seen), {}, 2, now=4.0, is_over=False) == []  # one of them is being written
    assert len(decide_finished(decide_groups(seen), {}, 2, now=5.0, is_over=False)) == 1


def test_the_watcher_takes_what_its_pattern_names(tmp_path: Path) -> None:
    for name in ("m-1.pt", "m-2.pt.tmp", ".m-3.pt", "other-4"):
        (tmp_path / name).write_bytes(name.encode())
    pattern = str(tmp_path / "*m-*")
    assert [path.name for path in matching(pattern)] == ["m-1.pt"]
    watcher = Watcher([pattern], Adopter(tmp_path / "saved", {}))
    watcher.look(0.0)
    assert list_saved(tmp_path / "saved" / "adopted") == []
    watcher.look(10.0)
    os.rename(tmp_path / "m-2.pt.tmp", tmp_path / "m-2.pt")
    watcher.look(11.0, is_over=True)
    assert [saved.manifest.step for saved in list_saved(tmp_path / "saved" / "adopted")] == [2, 1]


def test_all_files_of_a_step_are_in_its_checkpoint_and_a_late_one_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts: list[tuple[Any, ...]] = []
    monkeypatch.setattr(watching, "session", lambda: mine)
    mine = Session({})
    monkeypatch.setattr(mine, "alert", lambda *told: alerts.append(told))
    watcher = Watcher([str(tmp_path / "model_*.pt"), str(tmp_path / "optim_*.pt")], Adopter(tmp_path / "saved", {}))
    for step in (10, 20):
        (tmp_path / f"model_{step}.pt").write_bytes(b"m")
        watcher.look(float(step))
        (tmp_path / f"optim_{step}.pt").write_bytes(b"o")
        watcher.look(step + 1.0)
        watcher.look(step + 4.0)
        saved = list_saved(tmp_path / "saved" / ADOPTED)[0]
        assert saved.manifest.step == step
        assert [file.name for file in saved.manifest.files] == [f"model_{step}.pt", f"optim_{step}.pt"]
    (tmp_path / "optim_ema_20.pt").write_bytes(b"e")
    for now in (100.0, 110.0, 120.0):
        watcher.look(now)
    (told,) = alerts
    why = "optim_ema_20.pt came when the checkpoint of step 20 had been taken, and is not in it"
    assert told == ("checkpoint-failed", why, 20)


def test_what_a_full_disk_refused_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adopter = Adopter(tmp_path / "saved", {})
    (tmp_path / "m-1.pt").write_bytes(b"m")
    watcher, take, tries = Watcher([str(tmp_path / "*.pt")], adopter), adopter.take, 0

    def refuse(*sources: Path, **options: Any) -> int | None:
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return take(*sources, **options)

    monkeypatch.setattr(adopter, "take", refuse)
    for now in (0.0, 5.0, 6.0, 30.0):
        watcher.look(now)
    assert tries == 1  # not at every look: each writes most of it
    watcher.look(36.0)
    watcher.look(37.0, is_over=True)  # the last chance
    assert tries == 3
    assert [saved.manifest.step for saved in list_saved(tmp_path / "saved" / ADOPTED)] == [1]


def test_the_best_one_stays(tmp_path: Path) -> None:
    spool = tmp_path / "metrics-0.jsonl"
    adopter = Adopter(tmp_path / "saved", {"keep": 2, "best": "loss"})
    watcher = Watcher([str(tmp_path / "m_*.pt")], adopter, Logged(spool))
    for number, loss in enumerate([5, 1, 4, 3, 6, 2], start=1):
        (tmp_path / f"m_step{number * 10}.pt").write_bytes(b"m" * number)
        with spool.open("a") as file:
            file.write(json.dumps({"t": 1.0, "s": number * 10, "m": {"loss": loss}}) + "\n")
    watcher.look(0.0)
    watcher.look(5.0)
    found = {saved.manifest.step: saved.manifest.metrics for saved in list_saved(tmp_path / "saved" / ADOPTED)}
    assert found == {60: {"loss": 2.0}, 50: {"loss": 6.0}, 20: {"loss": 1.0}}


def test_names_with_what_was_measured_are_of_their_epoch(tmp_path: Path) -> None:
    """The newest stays, and its metrics are those of its time: an epoch is no step of `job.log`."""
    spool, adopter = tmp_path / "metrics-0.jsonl", Adopter(tmp_path / "saved", {"keep": 2})
    watcher = Watcher([str(tmp_path / "*.ckpt")], adopter, Logged(spool))
    for epoch, loss in enumerate([0.97, 0.85, 0.61, 0.42]):
        with spool.open("a") as file:
            file.write(json.dumps({"t": 10.0 + epoch, "s": 100 * (epoch + 1), "m": {"val_loss": loss}}) + "\n")
        path = tmp_path / f"epoch={epoch:02d}-val_loss={loss:.2f}.ckpt"
        path.write_text(path.name)
        os.utime(path, (9.996 + epoch, 9.996 + epoch))  # by the kernel's tick before
    watcher.look(0.0)
    watcher.look(5.0)
    found = {saved.manifest.step: saved.manifest.metrics for saved in list_saved(tmp_path / "saved" / ADOPTED)}
    assert found == {3: {"val_loss": 0.42}, 2: {"val_loss": 0.61}}


def test_names_that_tell_no_step_are_together_where_their_numbers_are_the_same() -> None:
    names = ["model-0.97.pt", "optim-0.97.pt", "model-0.85.pt", "optim-0.85.pt", "model.pt", "optim.pt"]
    there = {Path(name): (0, signed(at)) for at, name in enumerate(names)}
    assert finished(there, {}, settled_s=3.0) == [names[0:2], names[2:4], names[4:6]]


def test_what_had_been_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.job.checkpoint.logged._MOST_POINTS", 2)
    spool = tmp_path / "metrics-0.jsonl"
    logged = Logged(spool)
    logged.read()
    assert logged.up_to(5, 100.0) == {}
    lines: list[Any] = [
        {"t": 1.0, "s": 1, "m": {"val": 9.0, "loss": 8.0}},
        {"t": 2.0, "s": 2, "m": {"loss": 7.0}},
        {"t": 2.5, "s": None, "m": {"lr": 0.1}},
        {"t": 2.6, "s": 2, "a": {"kind": "x", "message": "m"}},
        "nonsense",
        {"t": 3.0, "s": 3, "m": {"loss": float("nan")}},
    ]
    spool.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"t": 4.0, "s": 3, "m"')
    logged.read()
    assert logged.up_to(2, 2.2) == {"val": 9.0, "loss": 7.0}
    assert logged.up_to(2, 2.7) == {"val": 9.0, "loss": 7.0, "lr": 0.1}
    assert logged.up_to(None, 1.5) == {"val": 9.0}  # of what was logged long before, the last values are known
    sick = logged.up_to(3, 9.0)
    assert math.isnan(sick.pop("loss"))  # and not the one before it
    assert sick == {"val": 9.0, "lr": 0.1}
    with spool.open("a") as file:
        file.write(': {"loss": 6.0}}\n')
    logged.read()
    assert logged.up_to(3, 9.0) == {"val": 9.0, "loss": 6.0, "lr": 0.1}
