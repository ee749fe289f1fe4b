"""What a rank tells of its steps is read as it was told, also after its death."""

from __future__ import annotations

from pathlib import Path

from windlass.agent.layout import progress
from windlass.agent.progress import NOTHING, ProgressFile, read_progress
from windlass.job.session import Session


def test_nothing_is_known_of_a_rank_that_has_told_nothing(tmp_path: Path) -> None:
    assert read_progress(str(tmp_path / "progress-0")) == NOTHING
    (tmp_path / "progress-0").write_bytes(b"half")
    assert read_progress(str(tmp_path / "progress-0")) == NOTHING


def test_steps_and_what_was_restored_are_read_as_told(tmp_path: Path) -> None:
    path = str(tmp_path / "progress-3")
    told = ProgressFile(path)
    told.restored(40, 0.25)
    told.stepped(41)
    told.stepped(42)
    found = read_progress(path)
    assert (found.step, found.restored_step, found.load_s, found.steps) == (42, 40, 0.25, 2)
    assert found.stepped_at >= found.restored_at > 0
    ProgressFile(path)
    assert read_progress(path) == NOTHING  # another process of this rank has begun


def test_logging_a_step_tells_it_once(tmp_path: Path) -> None:
    session = Session({"WINDLASS_NODE_DIR": str(tmp_path), "RANK": "1"})
    session.log(7, None, {"loss": 1.0})
    session.log(7, None, {"accuracy": 0.5})
    session.log(None, None, {"other": 0.5})
    session.stepped(8)
    found = read_progress(str(tmp_path / progress(1)))
    assert (found.step, found.steps) == (8, 2)
    session.flush()


def test_what_is_measured_of_saves_is_no_step(tmp_path: Path) -> None:
    training = Session({"WINDLASS_NODE_DIR": str(tmp_path), "RANK": "0"})
    training.stepped(105)
    training.note_metrics(100, {"checkpoint_write_s": 1.0})
    path = str(tmp_path / progress(0))
    told = read_progress(path)
    assert (told.step, told.steps) == (105, 1)
    beside = Session({"WINDLASS_NODE_DIR": str(tmp_path), "RANK": "0"})
    beside.note_metrics(100, {"checkpoint_upload_s": 1.0})
    beside.flush()
    assert read_progress(path) == told, "a process beside the rank has undone what it told"
    training.flush()
    assert training.last() == {}


def test_one_that_has_finished_is_so_until_its_next_step(tmp_path: Path) -> None:
    session = Session({"WINDLASS_NODE_DIR": str(tmp_path), "RANK": "0"})
    path = str(tmp_path / progress(0))
    session.stepped(10)
    session.finished()
    session.log(10, None, {"eval_loss": 1.0})
    told = read_progress(path)
    assert (told.step, told.steps) == (10, 1)
    assert told.finished_at >= told.stepped_at
    session.stepped(11)
    assert read_progress(path).finished_at == 0
    session.finished()
    session.restored(0, 0.1)
    assert read_progress(path).finished_at == 0
    session.flush()


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    session = Session({"WINDLASS_NODE_DIR": str(tmp_path / "missing")})
    session.stepped(1)
    session.restored(1, 0.0)
    session.finished()


def test_a_step_that_is_told_again_a_little_later_is_no_news(tmp_path: Path) -> None:
    """A checkpoint tells it at once, the meter when the device is through with it. A training after the first one
    begins anew."""
    session = Session({"WINDLASS_NODE_DIR": str(tmp_path), "RANK": "0"})
    for step in (10, 8, 11, 9, 10, 12):
        session.stepped(step)
    found = read_progress(str(tmp_path / progress(0)))
    assert (found.step, found.steps) == (12, 3)
    session.stepped(0)
    assert read_progress(str(tmp_path / progress(0))).step == 0
