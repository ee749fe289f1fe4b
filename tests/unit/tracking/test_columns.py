"""Columns come back as they went in, and roll-ups say what a plain count of all points says."""

from __future__ import annotations

import math
import struct
from array import array

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from windlass.tracking import rollups
from windlass.tracking.blocks import NO_STEP, Block, merged, pack, unpack
from windlass.tracking.columns import Column, ordered, pack_column, unpack_column
from windlass.tracking.rollups import bucketed, grouped, of_points, pack_rollups, unpack_rollups

STEPS = st.one_of(st.just(NO_STEP), st.integers(0, 20), st.integers(-(2**63) + 1, 2**63 - 1), st.integers(0, 10**6))
ATS = st.one_of(
    st.integers(0, 5).map(float),
    st.integers(0, 10**14).map(lambda ms: ms / 1e3),
    st.floats(0, 1e11, allow_nan=False),
)
VALUES = st.one_of(
    st.floats(),
    st.floats(width=32),
    st.integers(-5, 5).map(float),
    st.integers(-(10**9), 10**9).map(lambda number: number / 100),
    st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 5e-324, 2.0**53 + 2]),
)
ROWS = st.lists(st.tuples(STEPS, ATS, VALUES), max_size=200)


def column(rows: list[tuple[int, float, float]]) -> Column:
    return Column(
        array("q", [row[0] for row in rows]), array("d", [row[1] for row in rows]), array("d", [row[2] for row in rows])
    )


def bits(values: array[float]) -> list[bytes]:
    return [b"nan" if math.isnan(value) else struct.pack("d", value) for value in values]


@given(ROWS)
@example([(0, 0.1, 0.1)])
@example([(step, 1.7e9 + step / 1000, 0.25) for step in range(100)])
@example([(2**63 - 1, 0.0, 0.0), (NO_STEP, 0.0, 0.0), (2**63 - 1, 1e-9, 1e300)])
def test_columns_come_back_bit_for_bit(rows: list[tuple[int, float, float]]) -> None:
    given = column(rows)
    found = unpack_column(pack_column(given))
    assert found.steps == given.steps
    assert bits(found.ats) == bits(given.ats)
    assert bits(found.values) == bits(given.values)


@given(ROWS)
def test_order_is_by_step_and_time_and_repeats_are_once(rows: list[tuple[int, float, float]]) -> None:
    found = ordered(column(rows))
    places = list(zip(found.steps, found.ats, strict=True))
    assert places == sorted(places)
    points = list(zip(places, bits(found.values), strict=True))
    assert len(points) == len(set(points))
    assert set(points) == {((step, at), bits(array("d", [value]))[0]) for step, at, value in rows}


def test_points_of_one_place_stay_as_they_came() -> None:
    assert list(ordered(column([(1, 1.0, 9.0), (1, 1.0, 3.0), (0, 1.0, 5.0), (1, 1.0, 9.0)])).values) == [5.0, 9.0, 3.0]


@pytest.mark.parametrize(
    ("values", "most"),
    [
        ([float(number) for number in range(4096)], 0.6),
        ([0.1] * 4096, 0.6),
        ([round(math.sin(number) * 50, 2) for number in range(4096)], 2.5),
        ([struct.unpack("f", struct.pack("f", math.sin(number * number)))[0] for number in range(4096)], 3.7),
    ],
)
def test_points_of_a_kind_take_few_bytes(values: list[float], most: float) -> None:
    rows = [(step, 1.7e9 + round(step * 0.0123, 3), value) for step, value in enumerate(values)]
    assert len(pack_column(column(rows))) / len(rows) < most


BLOCKS = st.lists(
    st.tuples(
        st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=4, unique=True), st.lists(st.tuples(STEPS, ATS))
    ).flatmap(
        lambda head: st.lists(
            st.lists(VALUES, min_size=len(head[1]), max_size=len(head[1])),
            min_size=len(head[0]),
            max_size=len(head[0]),
        ).map(
            lambda values: Block(
                tuple(head[0]),
                array("q", [step for step, _ in head[1]]),
                array("d", [at for _, at in head[1]]),
                [array("d", each) for each in values],
            )
        )
    ),
    max_size=6,
)


@given(BLOCKS)
def test_blocks_come_back_and_merging_them_loses_nothing(blocks: list[Block]) -> None:
    def points(of: list[Block]) -> dict[str, list[tuple[int, float, bytes]]]:
        found: dict[str, list[tuple[int, float, bytes]]] = {}
        for block in of:
            for name, values in zip(block.names, block.values, strict=True):
                found.setdefault(name, []).extend(zip(block.steps, block.ats, bits(values), strict=True))
        return {name: sorted(rows) for name, rows in found.items()}

    assert points(unpack(pack(blocks))) == points(blocks)
    assert points(merged(unpack(pack(blocks)))) == points(blocks)


def plain(rows: list[tuple[int, float, float]]) -> tuple[object, ...]:
    """A roll-up the slow way."""
    numbers = [row for row in rows if not math.isnan(row[2])]
    low = min(numbers, key=lambda row: row[2], default=None)
    high = max(numbers, key=lambda row: row[2], default=None)
    return (len(rows), len(numbers), rows[0][:2], rows[-1][:2], low, high)


@given(ROWS.filter(bool), st.integers(1, 20), st.integers(1, 5))
@example([(0, 0.0, math.nan), (1, 0.0, -math.inf)], 2, 1)
@example([(0, 0.0, math.nan), (1, 0.0, math.inf)], 1, 2)
def test_roll_ups_equal_what_a_count_of_all_points_gives(
    rows: list[tuple[int, float, float]], size: int, coarser: int
) -> None:
    points = ordered(column(rows))
    ordered_rows = list(zip(*points, strict=True))
    fine = unpack_rollups(pack_rollups(grouped(of_points(points), size)))
    for found, step in ((fine, size), (grouped(fine, coarser), size * coarser)):
        assert len(found.points) == math.ceil(len(ordered_rows) / step)
        for row, start in enumerate(range(0, len(ordered_rows), step)):
            group = ordered_rows[start : start + step]
            count, numbers, first, last, low, high = plain(group)
            assert (found.points[row], found.numbers[row]) == (count, numbers)
            assert (found.first_steps[row], found.first_ats[row]) == first
            assert (found.last_steps[row], found.last_ats[row]) == last
            expected = [value for _, _, value in group if not math.isnan(value)]
            total = sum(expected)
            assert found.sums[row] == pytest.approx(total, nan_ok=True, rel=1e-9, abs=1e-3) or abs(total) > 1e290
            if low is not None and high is not None:
                assert (found.min_steps[row], found.min_ats[row], found.mins[row]) == low
                assert (found.max_steps[row], found.max_ats[row], found.maxs[row]) == high


@given(ROWS.filter(bool), st.integers(1, 30))
def test_a_chart_keeps_the_least_and_greatest_and_counts_everybody(
    rows: list[tuple[int, float, float]], most: int
) -> None:
    points = ordered(column(rows))
    found = bucketed(of_points(points), most)
    assert len(found.points) <= most
    assert sum(found.points) == len(points.steps)
    numbers = [value for value in points.values if not math.isnan(value)]
    drawn = [value for value in rollups.sampled(found).values if not math.isnan(value)]
    assert (min(drawn, default=None), max(drawn, default=None)) == (
        min(numbers, default=None),
        max(numbers, default=None),
    )
