"""Two runs in one folder: nothing of one is lost to the other, and neither goes on from the other's in silence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.unit.job.checkpoint.images import order, save  # noqa: E402
from windlass.core.manifest import folder_name  # noqa: E402
from windlass.job.checkpoint.checkpoints import checkpoints  # noqa: E402
from windlass.job.checkpoint.clearing import make_room  # noqa: E402
from windlass.job.checkpoint.disk import Disk  # noqa: E402
from windlass.job.checkpoint.folder import list_saved  # noqa: E402
from windlass.job.checkpoint.retention import Keep  # noqa: E402
from windlass.job.session import session  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    return lambda run_id: monkeypatch.setattr(session(), "run_id", run_id)


def of_run(run_id: str | None, folder: Path, step: int) -> str | None:
    """Save that step as that run, which keeps one; what was wrong."""
    answer = save(replace(order(folder, step, save_id=f"{run_id}"), run_id=run_id))
    assert answer is not None
    error: str | None = answer["error"]
    return error


def there(folder: Path) -> list[tuple[int, str | None]]:
    return [(saved.step, saved.manifest.run_id) for saved in list_saved(folder)]


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [("one", "two", "run one"), (None, "two", "a program outside of runs"), ("one", None, "run one")],
)
def test_a_step_that_another_run_has_saved_is_not_dropped_in_silence(
    first: str | None, second: str | None, named: str, tmp_path: Path
) -> None:
    assert of_run(first, tmp_path, 1) is None
    assert of_run(second, tmp_path, 1) == (
        f"{tmp_path} has step 1 of {named} already, whose place no other run takes: give each run a folder of its own, "
        "such as folder=job.session().checkpoint_dir"
    )
    assert [path.name for path in tmp_path.iterdir()] == [folder_name(1)]
    assert there(tmp_path) == [(1, first)]


def test_a_run_removes_no_checkpoint_of_another(tmp_path: Path) -> None:
    for run_id, step in (("one", 1), ("two", 2), ("one", 3), ("two", 4), ("two", 5)):
        assert of_run(run_id, tmp_path, step) is None
    assert there(tmp_path) == [(5, "two"), (3, "one")]
    assert make_room(tmp_path, Keep(last=1), Disk(), "three") == []
    assert there(tmp_path) == [(5, "two"), (3, "one")]


def test_going_on_from_another_runs_checkpoint_is_told(
    become: Callable[[str | None], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(until: int) -> int:
        with checkpoints(model=nn.Linear(2, 2), folder=tmp_path) as ckpt:
            for step in range(ckpt.first_step, until):
                ckpt.step(step + 1)
        return ckpt.first_step

    become("one")
    assert [train(2), train(3)] == [0, 2]
    assert "checkpoint-of-another-run" not in capsys.readouterr().err
    become("two")
    assert train(5) == 3
    told = f"the checkpoint of step 3 in {tmp_path} is of run one: this one goes on with what that one has trained"
    assert f"checkpoint-of-another-run: {told}" in capsys.readouterr().err
    assert there(tmp_path)[0] == (5, "two")


def test_programs_outside_of_runs_are_no_other_run(
    become: Callable[[str | None], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    become(None)
    for until in (1, 2):
        with checkpoints(model=nn.Linear(2, 2), folder=tmp_path) as ckpt:
            ckpt.step(until)
    assert ckpt.first_step == 1
    assert "checkpoint-of-another-run" not in capsys.readouterr().err


def test_the_last_step_that_was_not_saved_for_another_run_is_told(
    become: Callable[[str | None], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both began before either had saved."""
    become("two")
    with checkpoints(model=nn.Linear(2, 2), folder=tmp_path) as ckpt:
        assert of_run("one", tmp_path, 7) is None
        ckpt.step(7)
        assert not ckpt.save()
    assert there(tmp_path) == [(7, "one")]
    said = capsys.readouterr().err
    assert f"checkpoint-failed: nothing was saved: {tmp_path} has step 7 of run one already" in said
    assert "checkpoint-unsaved: step 7, the last one, is not saved" in said
