"""Copies in memory of several ranks: if one alone is in trouble."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.unit.job.checkpoint.meeting import Meeting, ThreadPeers  # noqa: E402
from windlass.job.checkpoint import slots  # noqa: E402
from windlass.job.checkpoint.arena import Arena  # noqa: E402
from windlass.job.checkpoint.interval import MemoryPace  # noqa: E402
from windlass.job.checkpoint.memory import NodeMemory  # noqa: E402
from windlass.job.checkpoint.snapshots import Snapshots  # noqa: E402
from windlass.job.checkpoint.state import TrainingState  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeMemory:
    monkeypatch.setattr(NodeMemory, "slots_for", lambda *_, **__: 2)
    (tmp_path / "memory").mkdir()
    return NodeMemory(tmp_path / "memory", local_ranks=2)


def run_two(folder: Path, memory: NodeMemory, work: Callable[[Snapshots, ThreadPeers], Any]) -> list[Any]:
    def alone(peers: ThreadPeers) -> Any:
        state = TrainingState(nn.Linear(4, 4), None, {}, None)
        copies = Snapshots(state, folder, peers, {}, None, memory=memory, pace=MemoryPace(1))
        try:
            return work(copies, peers)
        finally:
            copies.close(wait_s=0.0)

    return Meeting(2).run(alone)


@pytest.mark.parametrize("full", [{0, 1}, {1}])
def test_if_one_rank_has_no_room_none_makes_copies(
    full: set[int], memory: NodeMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks go on to take part in the same exchanges."""

    def opened(size_bytes: int, *, pinned: bool, path: Path | None = None) -> Arena:
        if path in [memory.arena(1, slot) for slot in full]:
            raise OSError(28, "No space left on device")
        return Arena(size_bytes, pinned=pinned, path=path)

    monkeypatch.setattr(slots, "Arena", opened)

    def work(copies: Snapshots, peers: ThreadPeers) -> bool:
        for step in range(1, 8):
            copies.settle(step)
            assert peers.largest([step]) == [step]
            if copies.is_memory_due(step):
                copies.remember(step, {})
        return copies.pace.is_off

    assert run_two(tmp_path / "disk", memory, work) == [True, True]
