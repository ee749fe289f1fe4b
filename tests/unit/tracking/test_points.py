from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.tracking.blocks import blocks_of, summaries_of
from windlass.tracking.points import (
    MetricPoint,
    ProgressMark,
    Summary,
    Teller,
    parse_spool,
    progress_after,
    progress_told,
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
    assert mark == ProgressMark(step=5, total=10, at=110, first_step=0, first_at=100, teller=Teller.JOB)
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


def mark(step: int, total: int | None, teller: Teller | None, attempt: int | None = 1) -> ProgressMark:
    return ProgressMark(step=step, total=total, at=100.0, first_step=0, first_at=0.0, teller=teller, attempt=attempt)


def begun(step: int, total: int | None, teller: Teller, attempt: int = 1) -> ProgressMark:
    return ProgressMark(
        step=step, total=total, at=200.0, first_step=step, first_at=200.0, teller=teller, attempt=attempt
    )


def test_what_is_printed_is_the_progress_of_a_run_that_logs_nothing() -> None:
    first = progress_told(None, Teller.PRINTED, step=10, total=100, at=100.0)
    later = progress_told(first, Teller.PRINTED, step=20, total=100, at=110.0)
    assert later is not None
    assert (later.step, later.eta_s()) == (20, pytest.approx(80.0))
    assert progress_told(later, Teller.PRINTED, step=20, total=100, at=110.0) == later  # told once more


@pytest.mark.parametrize("lower", [Teller.PRINTED, Teller.MLFLOW, Teller.BOARDS])
def test_of_several_tellers_the_highest_counts(lower: Teller) -> None:
    higher = Teller(lower + 1)
    known = mark(50, 100, higher)
    assert progress_told(known, lower, step=70, total=70, at=200.0, attempt=1) == known
    known = mark(90_000, 100_000, lower)  # it counts tokens, maybe
    assert progress_told(known, higher, step=3, at=200.0, attempt=1) == begun(3, None, higher)


@pytest.mark.parametrize("teller", list(Teller))
def test_a_new_attempt_begins_anew(teller: Teller) -> None:
    after = progress_told(mark(50, 100, Teller.JOB), teller, step=60, at=200.0, attempt=2)
    assert after == begun(60, None, teller, attempt=2)
    assert progress_told(after, Teller.JOB, step=51, at=201.0, attempt=1) == after  # came late


@pytest.mark.parametrize("teller", [Teller.MLFLOW, Teller.BOARDS])
def test_steps_of_others_go_on_only(teller: Teller) -> None:
    known = mark(50, None, teller)
    assert progress_told(known, teller, step=3, at=200.0, attempt=1) == known
    after = progress_told(known, teller, step=60, at=200.0, attempt=1)
    assert after == ProgressMark(step=60, total=None, at=200.0, first_step=0, first_at=0.0, teller=teller, attempt=1)


def test_a_step_that_cannot_be_one_is_none() -> None:
    known = mark(50, None, Teller.MLFLOW)
    assert progress_told(known, Teller.MLFLOW, step=2**63 - 1, at=200.0, attempt=1) == known


def test_another_total_is_another_bar() -> None:
    after = progress_told(mark(400, 1000, Teller.PRINTED), Teller.PRINTED, step=500, total=5000, at=200.0, attempt=1)
    assert after == begun(500, 5000, Teller.PRINTED)


def test_what_an_older_version_wrote_goes_on() -> None:
    after = progress_told(mark(50, 100, None, attempt=None), Teller.JOB, step=60, at=200.0, attempt=3)
    assert after == ProgressMark(step=60, total=100, at=200.0, first_step=0, first_at=0.0, teller=Teller.JOB, attempt=3)


def test_files_of_tensorboard_do_not_move_what_the_job_tells() -> None:
    spool = line(t=1, s=150, n=200, m={"loss": 1}) + line(t=2, s=3, m={"val/acc": 1}, o=[0, 80])
    mine, board = parse_spool(spool, 0).points
    assert (mine.of_board, board.of_board) == (False, True)
    after = progress_after(None, [board, mine, board])
    assert after is not None
    assert (after.step, after.total) == (150, 200)


@pytest.mark.parametrize(
    "found", [None, 3, {}, {"step": -1, "total": 5, "at": 1}, {"step": 1, "total": 5, "at": "now"}]
)
def test_a_sample_that_says_nonsense_of_it_says_nothing(found: object) -> None:
    assert read_printed(found) is None
