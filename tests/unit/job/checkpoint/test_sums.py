"""Sums of copies in the node's memory: which copies get some, and what they find."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from tests.unit.job.checkpoint.images import START
from windlass.job.checkpoint.memory import MemoryCopy, NodeMemory
from windlass.job.checkpoint.sums import Summing, damage_of
from windlass.testing.nursery import Nursery

SIZE = 3 << 19
_NURSERY = Nursery("windlass.job.checkpoint.saver")


@pytest.fixture
def memory(tmp_path: Path) -> NodeMemory:
    return NodeMemory(tmp_path)


def left(memory: NodeMemory, step: int, *, slot: int = 0, created_at: float = 1.0) -> MemoryCopy:
    memory.arena(0, slot).write_bytes(os.urandom(2 * SIZE))
    copy = MemoryCopy(
        rank=0,
        slot=slot,
        life="aaaa",
        step=step,
        run_id=None,
        attempt=1,
        world_size=1,
        plan="",
        layout="",
        size_bytes=2 * SIZE,
        files=[["__0_0.distcp", 0, SIZE], ["__0_1.distcp", SIZE, SIZE]],
        created_at=created_at,
        metrics={},
    )
    memory.commit(copy)
    return copy


def test_any_bit_is_found_in_what_was_summed(memory: NodeMemory) -> None:
    copy = left(memory, 1)
    Summing(memory, 0).sum_newest()
    assert damage_of(memory, copy, threads=2) is None
    whole = memory.arena(0, 0).read_bytes()
    for at in (0, SIZE - 1, SIZE, 2 * SIZE - 1):
        memory.arena(0, 0).write_bytes(whole[:at] + bytes([whole[at] ^ 128]) + whole[at + 1 :])
        name = f"__0_{at // SIZE}.distcp"
        assert damage_of(memory, copy) == f"the bytes of {name} in rank-0-0.arena are not those that were copied"


def test_many_bits_of_the_same_place_do_not_make_up_for_each_other(memory: NodeMemory) -> None:
    copy = left(memory, 1)
    Summing(memory, 0).sum_newest()
    content = bytearray(memory.arena(0, 0).read_bytes())
    for at in range(0, len(content), 64):
        content[at] ^= 1
    memory.arena(0, 0).write_bytes(content)
    assert damage_of(memory, copy) is not None


def test_sums_are_of_one_copy_and_not_of_the_next_in_its_place(memory: NodeMemory) -> None:
    left(memory, 1)
    Summing(memory, 0).sum_newest()
    copy = left(memory, 2, created_at=2.0)
    assert memory.sums(copy) is None
    assert damage_of(memory, copy) is None  # on trust
    Summing(memory, 0).sum_newest()
    assert memory.sums(copy) is not None
    memory.discard(0, 0)
    assert list(memory.folder.iterdir()) == []


def test_what_is_replaced_while_it_is_summed_gets_none(memory: NodeMemory) -> None:
    copy = left(memory, 1)

    def replaced() -> bool:
        memory.drop(0, 0)
        return False

    Summing(memory, 0).sum_newest(give_up=replaced)
    assert memory.sums(copy) is None


def test_the_newest_that_is_settled_is_summed_unless_there_is_something_else_to_do(memory: NodeMemory) -> None:
    now = time.time()
    old, new = left(memory, 1, created_at=now - 100), left(memory, 2, slot=1, created_at=now + 100)
    summing = Summing(memory, 0)
    summing.sum_newest(give_up=lambda: True)
    summing.sum_newest(settled_s=10.0, give_up=lambda: True)
    assert (memory.sums(old), memory.sums(new)) == (None, None)
    answers = iter([False, *[False] * 8, True])  # it looks, and before each piece
    summing.work_until(lambda _: next(answers))
    assert memory.sums(old) is not None
    assert memory.sums(new) is None
    summing.finish()
    assert memory.sums(new) is not None


@pytest.mark.parametrize(("said", "summed"), [(b"", True), (b'{"what": "end"}\n', False)])
def test_a_saver_sums_what_a_dead_rank_has_left(said: bytes, summed: bool, memory: NodeMemory) -> None:
    """And keeps nobody waiting who has told it to end. It is too new to be summed before."""
    copy = left(memory, 1, created_at=time.time() + 100)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        start = START.replace("main(0)", f"main(0, {str(memory.folder)!r}, 0)")
        process = _NURSERY.start(start, environ=os.environ, output=2, inputs=theirs.fileno())
        theirs.close()
        ours.sendall(said)
    assert process.wait(60) == 0
    assert (memory.sums(copy) is not None) is summed


def test_a_saver_sums_while_it_waits(memory: NodeMemory) -> None:
    copy = left(memory, 1)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        start = START.replace("main(0)", f"main(0, {str(memory.folder)!r}, 0)")
        process = _NURSERY.start(start, environ=os.environ, output=2, inputs=theirs.fileno())
        theirs.close()
        deadline = time.monotonic() + 60
        while memory.sums(copy) is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert process.wait(60) == 0
