"""Arithmetic on stretches of time, against counting ticks one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.job.accounting.intervals import Shares, length, merged, overlap, shares

ticks = st.integers(0, 60)
intervals = st.lists(st.tuples(ticks, ticks), max_size=12)


def covered(given_intervals: list[tuple[int, int]]) -> set[int]:
    return {tick for begin, end in given_intervals for tick in range(begin, end)}


@given(intervals)
def test_nothing_counts_twice(some: list[tuple[int, int]]) -> None:
    assert length(merged(some)) == len(covered(some))


@given(intervals, intervals)
def test_what_two_lists_have_in_common(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    assert overlap(merged(left), merged(right)) == len(covered(left) & covered(right))


def test_shares_of_a_step() -> None:
    # Ten seconds: four of communication, of which one is beside compute.
    found = shares(communication=[(6, 8), (4, 6), (5, 6)], compute=[(0, 3), (2, 5)], span_s=10)
    assert found == Shares(communication=0.4, overlapped=0.25)
    assert found.exposed == pytest.approx(0.3)


def test_no_communication_is_no_division_by_zero() -> None:
    assert shares(communication=[], compute=[(0, 1)], span_s=1) == Shares(communication=0, overlapped=0)
    assert shares(communication=[(0, 1)], compute=[], span_s=0) == Shares(communication=0, overlapped=0)
