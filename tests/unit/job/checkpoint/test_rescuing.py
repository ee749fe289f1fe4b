"""What is left in the node's memory by an attempt that ended badly, as a checkpoint on the disk."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed.checkpoint as dcp  # noqa: E402
from torch import nn  # noqa: E402

from tests.unit.job.checkpoint.meeting import Meeting, ThreadPeers  # noqa: E402
from windlass.core.manifest import SaveReason  # noqa: E402
from windlass.job.checkpoint.checkpoints import checkpoints  # noqa: E402
from windlass.job.checkpoint.folder import check_hashes, check_sizes, list_saved  # noqa: E402
from windlass.job.checkpoint.interval import MemoryPace  # noqa: E402
from windlass.job.checkpoint.memory import FOLDER, NodeMemory  # noqa: E402
from windlass.job.checkpoint.rescuing import Terms, newest_whole, rescue  # noqa: E402
from windlass.job.checkpoint.snapshots import Snapshots  # noqa: E402
from windlass.job.checkpoint.state import TrainingState  # noqa: E402
from windlass.job.checkpoint.sums import Summing  # noqa: E402
from windlass.job.session import Session, session  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeMemory:
    monkeypatch.setattr(NodeMemory, "slots_for", lambda *_, **__: 3)
    (tmp_path / "memory").mkdir()
    monkeypatch.setenv(FOLDER, str(tmp_path / "memory"))
    monkeypatch.setattr(session(), "_checkpoint_dir", str(tmp_path / "disk"))
    return NodeMemory(tmp_path / "memory")


class BadBatch(Exception): ...


def failed_after(steps: int, folder: Path, **options: Any) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    with (
        suppress(BadBatch),
        checkpoints(model=model, folder=folder, **{"every": 1000, "memory": 1, **options}) as ckpt,
    ):
        for step in ckpt.steps(steps):
            with torch.no_grad():
                model.weight.fill_(step + 1)
        model.weight.data.fill_(-1.0)  # halfway through the next step
        raise BadBatch


def rescued(memory: NodeMemory) -> int | None:
    return rescue(memory, Terms(**memory.terms()), Session({}))


def spoil(memory: NodeMemory, rank: int, step: int) -> None:
    (copy,) = [copy for copy in memory.copies(rank) if copy.step == step]
    with memory.arena(rank, copy.slot).open("r+b") as file:
        file.seek(copy.files[0][2] // 2)
        file.write(b"\xff\xff")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_last_step_is_on_the_disk(memory: NodeMemory, tmp_path: Path) -> None:
    failed_after(5, tmp_path / "disk")
    assert list_saved(tmp_path / "disk") == []
    assert rescued(memory) == 5
    assert rescued(memory) is None  # it is there
    (saved,) = list_saved(tmp_path / "disk")
    check_sizes(saved)
    check_hashes(saved)
    assert (saved.step, saved.manifest.reason) == (5, SaveReason.RESCUED)
    state = {"model": nn.Linear(8, 8).state_dict()}
    dcp.load(state, checkpoint_id=str(saved.path))
    assert set(state["model"]["weight"].flatten().tolist()) == {5.0}
    other = nn.Linear(8, 8)
    with checkpoints(model=other, folder=tmp_path / "disk", every=1000, memory="off") as ckpt:
        assert ckpt.first_step == 5
        assert other.weight[0, 0].item() == 5.0


def test_what_the_supervisor_runs_does_the_same(memory: NodeMemory, tmp_path: Path) -> None:
    failed_after(3, tmp_path / "disk", every=2)
    assert [saved.step for saved in list_saved(tmp_path / "disk")] == [2]
    subprocess.run(Terms(**memory.terms()).argv, check=True)
    assert [saved.step for saved in list_saved(tmp_path / "disk")] == [3, 2]


def test_it_costs_none_of_those_before(memory: NodeMemory, tmp_path: Path) -> None:
    """What it has may be what made the program fail."""
    failed_after(3, tmp_path / "disk", every=2, keep=1)
    assert rescued(memory) == 3
    assert [saved.step for saved in list_saved(tmp_path / "disk")] == [3, 2]


def test_a_damaged_copy_gives_way_to_the_one_before(memory: NodeMemory, tmp_path: Path) -> None:
    failed_after(5, tmp_path / "disk")
    Summing(memory, 0).sum_newest()
    spoil(memory, 0, 5)
    assert rescued(memory) == 4


def test_what_is_no_newer_than_the_disk_is_left(memory: NodeMemory, tmp_path: Path) -> None:
    failed_after(4, tmp_path / "disk", every=4)
    assert rescued(memory) is None
    assert [saved.manifest.reason for saved in list_saved(tmp_path / "disk")] == [SaveReason.INTERVAL]


def test_if_it_cannot_be_saved_an_alert_says_so(
    memory: NodeMemory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed_after(3, tmp_path / "disk")
    terms = replace(Terms(**memory.terms()), folder="/proc/nothing")
    assert rescue(memory, terms, Session({})) is None
    assert "step 3, the last one in the node's memory, could not be saved" in capsys.readouterr().err


def test_of_several_ranks_it_is_what_all_have(memory: NodeMemory, tmp_path: Path) -> None:
    def work(peers: ThreadPeers) -> None:
        copies = Snapshots(
            TrainingState(nn.Linear(4, 4), None, {}, None),
            tmp_path / "disk",
            peers,
            {},
            None,
            memory=memory,
            pace=MemoryPace(1),
        )
        for step in (1, 2, 3):
            copies.settle(step)
            copies.remember(step, {})
        peers.gather(None)
        copies.close(wait_s=10.0)

    Meeting(2).run(work)
    (newest,) = [copy for copy in memory.copies(1) if copy.step == 3]
    memory.drop(1, newest.slot)  # it died before it was complete
    assert [(copy.rank, copy.step) for copy in newest_whole(memory)] == [(0, 2), (1, 2)]
    assert rescued(memory) == 2
    (saved,) = list_saved(tmp_path / "disk")
    check_hashes(saved)
    assert saved.manifest.world_size == 2
    for copy in memory.copies(1):
        memory.drop(1, copy.slot)
    assert newest_whole(memory) == []
