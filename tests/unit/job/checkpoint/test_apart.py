"""Processes of one run that are in no process group with each other: what they save does not meet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from windlass.core.errors import InvalidInput  # noqa: E402
from windlass.job.checkpoint import apart, state  # noqa: E402
from windlass.job.checkpoint.checkpoints import checkpoints  # noqa: E402
from windlass.job.checkpoint.folder import list_saved  # noqa: E402
from windlass.job.session import Session  # noqa: E402

pytestmark = pytest.mark.torch


class Position:
    at = 0

    def state_dict(self) -> int:
        return self.at

    def load_state_dict(self, state: int) -> None:
        self.at = state


@pytest.fixture(params=[0, 1])
def rank(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of two, which have no group."""
    here = Session({"RANK": str(request.param), "WORLD_SIZE": "2"})
    for module in (apart, state):
        monkeypatch.setattr(module, "session", lambda: here)
    return int(request.param)


def test_who_has_forgotten_the_group_is_told(rank: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as refused:
        checkpoints(model=nn.Linear(2, 2))
    assert f"this process is rank {rank} of 2, in no process group with the others" in refused.value.message
    assert "call job.init() before job.checkpoints(...)" in refused.value.message
    with pytest.raises(InvalidInput, match=r"the store 's3://b/x' would get what each of them saves"):
        checkpoints(model=nn.Linear(2, 2), folder=tmp_path, store="s3://b/x")


@pytest.mark.usefixtures("rank")
def test_one_folder_is_for_one_of_them(tmp_path: Path) -> None:
    with checkpoints(model=nn.Linear(2, 2), folder=tmp_path / "a") as ckpt:
        ckpt.step(1)
        with (
            pytest.raises(InvalidInput, match="has the checkpoints of another process of this run"),
            checkpoints(model=nn.Linear(2, 2), folder=tmp_path / "a"),
        ):
            pytest.fail("it has begun")
        with checkpoints(model=nn.Linear(2, 2), folder=tmp_path / "b") as other:
            other.step(2)
    assert [saved.manifest.step for saved in (*list_saved(tmp_path / "a"), *list_saved(tmp_path / "b"))] == [1, 2]


@pytest.mark.usefixtures("rank")
def test_each_in_its_own_folder_goes_on_as_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WINDLASS_MEMORY_DIR", str(tmp_path))
    given: Any = {"model": nn.Linear(2, 2), "folder": tmp_path / "own", "memory": 1}
    position = Position()
    with checkpoints(**given, loader=position) as ckpt:
        position.at = 7
        ckpt.step(1)
        drawn = torch.get_rng_state()
    torch.rand(3)
    found = Position()
    with checkpoints(**given, loader=found) as ckpt:
        assert (ckpt.first_step, found.at) == (1, 7)
        assert torch.equal(torch.get_rng_state(), drawn)
    assert not list(tmp_path.glob("*.arena"))
    assert "data-position" not in capsys.readouterr().err
