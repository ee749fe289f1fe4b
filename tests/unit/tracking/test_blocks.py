"""Points that are given by columns become the blocks that they become one by one."""

from __future__ import annotations

import json
import struct
import zlib
from array import array

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from windlass.tracking.blocks import Block, Logged, blocks_of_columns, blocks_of_logged, merged, pack, unpack

POINTS = st.lists(
    st.builds(
        Logged, st.sampled_from("abc"), st.integers(0, 9).map(float), st.sampled_from([1.0, 2.0]), st.integers(0, 2)
    ),
    min_size=1,
    max_size=12,
)


def grid(names: str, steps: int) -> list[Logged]:
    return [Logged(name, step + 0.5, 1.0 + step, step) for step in range(steps) for name in names]


@given(points=POINTS)
@example(points=grid("abc", 4))
@example(points=grid("abc", 4)[:-1])
@example(points=grid("a", 100))
@example(points=grid("ab", 100))
@example(points=[*grid("ab", 2), Logged("b", 1.0, 9.0, 9), Logged("a", 1.0, 9.0, 9)])
@example(points=[Logged("a", 1.0, 1.0, 1), Logged("b", 1.0, 2.0, 1)])
@example(points=[Logged("a", 1.0, 1.0, 1), Logged("b", 1.0, 1.0, 2)])
@example(points=[Logged("a", 1.0, 1.0, 1), Logged("b", 2.0, 1.0, 1)] * 2)
def test_columns_of_points_make_the_same_blocks(points: list[Logged]) -> None:
    names, values, ats, steps = zip(*points, strict=True)
    assert blocks_of_columns(names, values, ats, steps) == blocks_of_logged(points)


def block(names: list[str], *, is_once: bool = False, start: float = 0.0) -> Block:
    values = [array("d", [start + number, start + number + 0.5]) for number in range(len(names))]
    return Block(tuple(names), array("q", [1, 2]), array("d", [1.0, 2.0]), values, is_once)


@pytest.mark.parametrize("wanted", [["m7"], ["m7", "é"], ["m"], [], [f"m{number}" for number in range(100)]])
def test_a_few_metrics_of_many_are_unpacked_as_they_are_with_all(wanted: list[str]) -> None:
    blocks = [block([f"m{number}" for number in range(2_000)]), block(["é", "m7"], is_once=True, start=0.1)]
    for kept in (pack(blocks), pack(blocks[1:])):
        found = [
            (one.is_once, name, column)
            for one in unpack(kept)
            for name, column in zip(one.names, one.values, strict=True)
            if name in wanted
        ]
        some = unpack(kept, wanted)
        assert [
            (one.is_once, name, column) for one in some for name, column in zip(one.names, one.values, strict=True)
        ] == found
        assert all(list(one.steps) == [1, 2] and list(one.ats) == [1.0, 2.0] for one in some)


def test_blocks_of_the_version_before_are_of_points_that_may_have_been_sent_again() -> None:
    blocks = [block(["a"]), block(["b", "c"])]
    head = json.dumps([[one.names, 2] for one in blocks], separators=(",", ":")).encode()
    columns = b"".join(
        one.steps.tobytes() + one.ats.tobytes() + b"".join(column.tobytes() for column in one.values) for one in blocks
    )
    plain = struct.pack("<I", len(head)) + head + columns
    for kept in (b"\x01" + plain, b"\x02" + zlib.compress(plain)):
        assert unpack(kept) == blocks


def test_rows_that_were_sent_once_are_not_merged_with_others() -> None:
    blocks = [block(["a"], is_once=True), block(["a"]), block(["a"], is_once=True)]
    found = unpack(pack(merged(unpack(pack(blocks)))))
    assert [(one.is_once, len(one.steps)) for one in found] == [(True, 4), (False, 2)]
