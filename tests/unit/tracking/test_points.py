from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.tracking.blocks import blocks_of, summaries_of
from windlass.tracking.points import (
    MetricPoint,
    PrintedProgress,
    ProgressMark,
    Summary,
    parse_spool,
    progress_after,
    progress_printed,
    read_printed,
)


def point(step: int | None, at: float, total: int | None = None) -> MetricPoint:
    return MetricPoint(at=at, step=step, values={"loss": 1.0}, total=total)


@given(st.lists(st.floats(allow_infinity=False), min_size=1))
def test_a_summary_holds_last_least_and_greatest(values: list[float]) -> None:
    summary = Summary()
    for number, value in enumerate(values):
        one = MetricPoint(at=1.0, step=number, values={"loss": value})
        summary = summary.joined(summaries_of(blocks_of([one]))["loss"])
    numbers = [value for value in values if not math.isnan(value)]
    assert summary.count == len(values)
    assert summary.last_step == len(values) - 1
    assert summary.last == (None if math.isnan(values[-1]) else values[-1])
    assert summary.min == min(numbers, default=None)
    assert summary.max == max(numbers, default=None)


def test_progress_follows_the_newest_step_and_keeps_the_total() -> None:
    mark = progress_after(None, [point(0, 100, total=10), point(None, 101), point(5, 110)])
    assert mark == ProgressMark(step=5, total=10, at=110, first_step=0, first_at=100)
    assert mark.eta_s() == pytest.approx(10.0)


def test_steps_that_go_back_begin_a_new_measure_of_speed() -> None:
    mark = progress_after(None, [point(0, 0, total=100), point(50, 10), point(40, 1_000), point(50, 1_005)])
    assert mark is not None
    assert (mark.first_step, mark.first_at) == (40, 1_000)
    assert mark.eta_s() == pytest.approx(25.0)


@pytest.mark.parametrize(
    "mark",
    [
        ProgressMark(step=5, total=None, at=10, first_step=0, first_at=0),
        ProgressMark(step=5, total=10, at=10, first_step=5, first_at=10),
        ProgressMark(step=5, total=10, at=0, first_step=0, first_at=0),
        ProgressMark(step=5, total=10, at=-5, first_step=0, first_at=0),
    ],
)
def test_without_a_speed_there_is_no_eta(mark: ProgressMark) -> None:
    assert mark.eta_s() is None


def test_more_steps_than_planned_means_no_time_left() -> None:
    assert ProgressMark(step=12, total=10, at=10, first_step=0, first_at=0).eta_s() == 0.0


def test_points_without_steps_are_no_progress() -> None:
    assert progress_after(None, [point(None, 1)]) is None


def line(**data: object) -> bytes:
    return json.dumps(data).encode() + b"\n"


def test_a_spool_line_is_a_point() -> None:
    chunk = parse_spool(line(t=5.0, s=3, n=10, m={"loss": 0.5}), 100)
    assert chunk.points == [MetricPoint(at=5.0, step=3, values={"loss": 0.5}, total=10)]
    assert (chunk.next_position, chunk.bad_lines) == (100 + len(line(t=5.0, s=3, n=10, m={"loss": 0.5})), 0)


def test_a_torn_last_line_waits_for_its_end() -> None:
    whole, torn = line(t=1, m={"a": 1}), line(t=2, m={"a": 2})
    first = parse_spool(whole + torn[:-5], 0)
    assert [p.at for p in first.points] == [1.0]
    second = parse_spool((whole + torn)[first.next_position :], first.next_position)
    assert [p.at for p in second.points] == [2.0]
    assert second.next_position == len(whole + torn)


@pytest.mark.parametrize(
    "garbage",
    [
        b"{}\n", b"[]\n", b"null\n", b"not json\n", b"\xff\xfe\n", b'{"t": "x", "m": {}}\n', b'{"t": 1, "m": [1]}\n',
        b'{"t": 1, "m": {"a": "x"}}\n', b'{"t": 1, "s": -1, "m": {"a": 1}}\n', b'{"t": 1, "s": 1e30, "m": {"a": 1}}\n',
        b'{"t": 1, "m": {"a": ' + b"9" * 400 + b"}}\n", b"[" * 100_000 + b"\n", b'{"t": NaN, "m": {"a": 1}}\n',
        b'{"t": 1e400, "m": {"a": 1}}\n', b'{"t": -5, "m": {"a": 1}}\n',
    ],
)  # fmt: skip
def test_a_line_that_is_no_point_is_counted_and_passed_over(garbage: bytes) -> None:
    good = line(t=1, m={"a": 1})
    chunk = parse_spool(good + garbage + b"\n" + good, 0)
    assert [p.at for p in chunk.points] == [1.0, 1.0]
    assert chunk.bad_lines == 1
    assert chunk.next_position == len(good + garbage + good) + 1


def test_names_the_database_cannot_keep_are_left_out() -> None:
    [found] = parse_spool(line(t=1, m={"": 1, "a\0b": 2, "x" * 300: 3, "\ud800": 4, "ok": 5}), 0).points
    assert found.values == {"x" * 250: 3.0, "ok": 5.0}


@given(st.binary(max_size=300), st.integers(0, 10**9))
def test_any_bytes_are_read_to_the_last_whole_line(data: bytes, position: int) -> None:
    chunk = parse_spool(data, position)
    assert chunk.next_position == position + data.rfind(b"\n") + 1


@given(st.lists(st.tuples(st.integers(0, 100), st.floats(0, 100)), max_size=10), st.data())
def test_reading_in_pieces_gives_the_same_points(values: list[tuple[int, float]], data: st.DataObject) -> None:
    spool = b"".join(line(t=at, s=step, m={"a": 1}) for step, at in values)
    whole = parse_spool(spool, 0)
    points, position = [], 0
    for cut in [*sorted(data.draw(st.lists(st.integers(0, len(spool)), max_size=5))), len(spool)]:
        if cut > position:
            chunk = parse_spool(spool[position:cut], position)
            points += chunk.points
            position = chunk.next_position
    assert points == whole.points


def printed(step: int, total: int, at: float = 200.0) -> PrintedProgress:
    return PrintedProgress(step=step, total=total, at=at)


def mark(step: int, total: int | None, at: float = 100.0) -> ProgressMark:
    return ProgressMark(step=step, total=total, at=at, first_step=0, first_at=0.0)


def test_what_is_printed_is_the_progress_of_a_run_that_logs_nothing() -> None:
    first = progress_printed(None, printed(10, 100, at=100.0), tells=False)
    assert first == ProgressMark(step=10, total=100, at=100.0, first_step=10, first_at=100.0)
    later = progress_printed(first, printed(20, 100, at=110.0), tells=False)
    assert later is not None
    assert later.eta_s() == pytest.approx(80.0)
    again = progress_printed(mark(60, 100), printed(2, 100), tells=False)  # another attempt, from the beginning
    assert again is not None
    assert (again.step, again.first_step) == (2, 2)


@pytest.mark.parametrize(
    ("known", "said", "tells", "after"),
    [
        (mark(100, None), printed(98, 1000), True, mark(100, 1000)),  # the total that was not logged
        (mark(1500, None), printed(3, 10), True, mark(1500, None)),  # epochs
        (mark(50, 100), printed(5, 20), False, mark(50, 100)),  # the bar of an evaluation
        (mark(100, 100), printed(5, 20), True, mark(100, 100)),
        (mark(50, 100), printed(48, 100), False, mark(50, 100)),  # what is logged is ahead
        (mark(50, 100, at=300.0), printed(60, 100), False, mark(50, 100, at=300.0)),  # an old sample
    ],
)
def test_what_is_logged_counts_before_what_is_printed(
    known: ProgressMark, said: PrintedProgress, tells: bool, after: ProgressMark
) -> None:
    assert progress_printed(known, said, tells=tells) == after


def test_the_next_bar_begins_where_one_has_ended() -> None:
    after = progress_printed(mark(1000, 1000), printed(3, 500), tells=False)
    assert after == ProgressMark(step=3, total=500, at=200.0, first_step=3, first_at=200.0)


@pytest.mark.parametrize(
    "found", [None, 3, {}, {"step": -1, "total": 5, "at": 1}, {"step": 1, "total": 5, "at": "now"}]
)
def test_a_sample_that_says_nonsense_of_it_says_nothing(found: object) -> None:
    assert read_printed(found) is None
