"""Copies in memory of several ranks: if one alone is in trouble, and while saves are over on some of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.unit.job.checkpoint.meeting import Meeting, ThreadPeers  # noqa: E402
from windlass.blobs.stored import step_of  # noqa: E402
from windlass.core.manifest import SaveReason  # noqa: E402
from windlass.job.checkpoint import slots  # noqa: E402
from windlass.job.checkpoint.arena import Arena  # noqa: E402
from windlass.job.checkpoint.copying import Copier, Copy  # noqa: E402
from windlass.job.checkpoint.interval import MemoryPace  # noqa: E402
from windlass.job.checkpoint.memory import NodeMemory  # noqa: E402
from windlass.job.checkpoint.saving import Saving  # noqa: E402
from windlass.job.checkpoint.slots import Slot, Slots  # noqa: E402
from windlass.job.checkpoint.snapshots import Snapshots  # noqa: E402
from windlass.job.checkpoint.state import TrainingState  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeMemory:
    monkeypatch.setattr(NodeMemory, "slots_for", lambda *_, **__: 2)
    (tmp_path / "memory").mkdir()
    return NodeMemory(tmp_path / "memory", local_ranks=2)


@pytest.fixture
def left(memory: NodeMemory, monkeypatch: pytest.MonkeyPatch) -> dict[int, list[set[int]]]:
    """By rank: what it holds while it makes each copy."""
    held: dict[int, list[set[int]]] = {0: [], 1: []}
    claim = Slots.claim

    def claimed(self: Slots) -> tuple[Slot, bool]:
        found = claim(self)
        held[self._rank].append({copy.step for copy in memory.copies(self._rank)})
        return found

    monkeypatch.setattr(Slots, "claim", claimed)
    return held


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
    memory: NodeMemory, left: dict[int, list[set[int]]], tmp_path: Path
) -> None:

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


class Late:
    """A copy that goes on until the step is over. `is_whole`: the state was not changed under it."""

    goes_on = True

    def __init__(self, copy: Copy, *, is_whole: bool) -> None:
        self._copy, self._is_whole = copy, is_whole

    def finish(self) -> bool:
        return self._copy.finish() and self._is_whole

    def held_up_s(self, _: float) -> float:
        return 0.0


@pytest.mark.parametrize("trouble", ["torn", "changed"])
def test_a_copy_that_one_rank_lacks_makes_way_for_the_next(
    trouble: str, memory: NodeMemory, left: dict[int, list[set[int]]], tmp_path: Path
) -> None:
    """And not the one before, which all of them have."""
    begin = Copier.begin

    def work(copies: Snapshots, peers: ThreadPeers) -> None:
        def late(*given: Any, **how: Any) -> Any:
            return Late(begin(copies._copier, *given, **how), is_whole=peers.rank == 0)

        for step in range(1, 7):
            if step == 4 and trouble == "torn":
                copies._copier.begin = late  # type: ignore[method-assign]
            if step == 4 and trouble == "changed" and peers.rank == 1:
                copies._fits = lambda _: False  # type: ignore[method-assign]
            copies.remember(step, {})
            for name, owner in (("begin", copies._copier), ("_fits", copies)):
                owner.__dict__.pop(name, None)
            copies.settle(step)

    run_two(tmp_path / "disk", memory, work)
    if trouble == "changed":
        left[1].insert(3, set())  # of step 4 it made none
    assert (left[0][4], left[1][4]) == ({3}, {3})
    assert (left[0][5], left[1][5]) == ({5}, {5})


def test_every_save_has_a_name_of_its_own_on_all_ranks(
    memory: NodeMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save of the same step that came to nothing may have left the parts of some ranks, and they look finished."""
    given: dict[int, list[str]] = {0: [], 1: []}
    monkeypatch.setattr(Saving, "give", lambda _, order: given[order.rank].append(order.save_id))

    def work(copies: Snapshots, _: ThreadPeers) -> None:
        for step in (7, 7, 8):
            copies.begin(step, SaveReason.ASKED, {})
            copies.wait(step)

    run_two(tmp_path / "disk", memory, work)
    assert given[0] == given[1]
    assert len(set(given[0])) == 3
    assert all(step_of(f"step-0000000007-{name}") == 7 for name in given[0])  # a node's part is told by it in a store


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
