"""Folders of event files as runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.event_files import event, record, simple, write
from windlass.core.errors import InvalidInput
from windlass.imports.boards import DAMAGED_TAG, BoardSource
from windlass.imports.records import Experiment, Point, Run

AT = 1_700_000_000


def scalars(folder: Path, *values: float, began: int = AT) -> Path:
    return write(folder, began, *(record(event(AT + n, n, simple("loss", value))) for n, value in enumerate(values)))


def runs(source: BoardSource) -> dict[str, Run]:
    return {run.name: run for run in source.runs(Experiment(id="0", name=""), deleted=False)}


def test_every_folder_with_scalars_is_a_run(tmp_path: Path) -> None:
    root = tmp_path / "logs"
    scalars(root / "a/train", 1.0, 0.5)
    scalars(root / "a/train", 0.25, began=AT + 100)  # a writer that went on in the same folder
    scalars(root / "b", 2.0)
    write(root / "empty", AT)
    source = BoardSource(root)
    assert [one.name for one in source.experiments(deleted=False)] == ["logs"]
    found = runs(source)
    assert set(found) == {"a/train", "b"}
    run = found["a/train"]
    assert sorted(source.history(run, "loss")) == [
        Point(0, AT * 1000, 0.25),
        Point(0, AT * 1000, 1.0),
        Point(1, (AT + 1) * 1000, 0.5),
    ]
    assert (run.start_ms, run.end_ms) == (AT * 1000, (AT + 1) * 1000)


def test_ids_stay_when_the_folder_is_moved(tmp_path: Path) -> None:
    scalars(tmp_path / "logs/a", 1.0)
    scalars(tmp_path / "logs/b", 1.0)
    before = {name: run.id for name, run in runs(BoardSource(tmp_path / "logs")).items()}
    (tmp_path / "logs").rename(tmp_path / "elsewhere")
    after = {name: run.id for name, run in runs(BoardSource(tmp_path / "elsewhere")).items()}
    assert before == after
    assert before["a"] != before["b"]


def test_what_comes_before_damage_is_read_and_the_damage_is_said(tmp_path: Path) -> None:
    path = scalars(tmp_path / "logs/a", 1.0)
    path.write_bytes(path.read_bytes() + b"\x00" * 40)
    source = BoardSource(tmp_path / "logs")
    run = runs(source)["a"]
    assert run.tags == {DAMAGED_TAG: path.name}
    assert len(list(source.history(run, "loss"))) == 1


def test_a_folder_without_event_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no event files"):
        BoardSource(tmp_path)
    with pytest.raises(InvalidInput, match="there is no folder"):
        BoardSource(tmp_path / "nothing")


def test_tags_have_names_that_mlflow_takes(tmp_path: Path) -> None:
    tags = ("Accuracy (%)", "acc@1", "acc#1", "loss[0]", "a//b", "/x/", "plain/loss")
    records = [record(event(1_700_000_000, 1, simple(tag, 0.5))) for tag in tags]
    write(tmp_path / "logs", 1_700_000_000, *records)
    [run] = runs(BoardSource(tmp_path / "logs")).values()
    assert list(run.metrics) == ["Accuracy ___", "acc_1", "acc_1_2", "loss_0_", "a/b", "x", "plain/loss"]
