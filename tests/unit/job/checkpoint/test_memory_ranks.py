"""Copies in memory of several ranks: if one alone is in trouble, and while saves are over on some of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.unit.job.checkpoint.meeting import Meeting, ThreadPeers  # noqa: E402
from windlass.core.manifest import SaveReason  # noqa: E402
from windlass.job.checkpoint import slots  # noqa: E402
from windlass.job.checkpoint.arena import Arena  # noqa: E402
from windlass.job.checkpoint.interval import MemoryPace  # noqa: E402
from windlass.job.checkpoint.memory import NodeMemory  # noqa: E402
from windlass.job.checkpoint.slots import Slot, Slots  # noqa: E402
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


def test_while_one_rank_still_saves_all_give_up_the_same_step(
    memory: NodeMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: dict[int, list[set[int]]] = {0: [], 1: []}  # by rank: what it holds while it makes each copy
    claim = Slots.claim

    def claimed(self: Slots) -> tuple[Slot, bool]:
        found = claim(self)
        left[self._rank].append({copy.step for copy in memory.copies(self._rank)})
        return found

    monkeypatch.setattr(Slots, "claim", claimed)

    def work(copies: Snapshots, peers: ThreadPeers) -> None:
        copies.remember(1, {})
        copies.begin(2, SaveReason.INTERVAL, {})
        if peers.rank == 1:
            copies._saving.hear = lambda _: False  # type: ignore[method-assign]  # it takes its time
        else:
            copies.wait(2)
        for step in (3, 4, 5):
            copies.settle(step)
            copies.look()
            copies.remember(step, {})
        if peers.rank == 1:
            del copies._saving.hear
        copies.wait(5)
        for step in (6, 7, 8):
            copies.settle(step)
            copies.remember(step, {})

    run_two(tmp_path / "disk", memory, work)
    both = [mine & theirs for mine, theirs in zip(left[0], left[1], strict=True)]
    assert both == [set(), {1}, {2}, {2}, {2}, {2}, {6}, {7}]


@pytest.mark.parametrize("method", ["commit", "begin_saving", "keep_layout"])
def test_memory_that_is_full_costs_copies_not_the_training(
    method: str, memory: NodeMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(NodeMemory, method, full)

    def work(copies: Snapshots, _: ThreadPeers) -> bool:
        for step in range(1, 5):
            copies.settle(step)
            if copies.is_memory_due(step):
                copies.remember(step, {})
            copies.begin(step, SaveReason.INTERVAL, {})
            copies.wait(step)
        return copies.agree_on_failure()[0]

    assert run_two(tmp_path / "disk", memory, work) == [False, False]
