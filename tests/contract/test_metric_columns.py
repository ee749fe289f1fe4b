"""What was logged is what is read, in any order, repeated or not, before, between and after compactions."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, insert, select, update

from tests.contract.metric_logging import compact, line, log, mark, new_run
from windlass.controller.compactor import Compactor, Keeping
from windlass.db.database import Database
from windlass.experiments import history
from windlass.runs.service import RunService
from windlass.runs.tables import runs
from windlass.testing.clock import FakeClock
from windlass.tracking import chunks as packing
from windlass.tracking.blocks import Logged
from windlass.tracking.compaction import FULL, Deed
from windlass.tracking.points import MetricPoint
from windlass.tracking.series import (
    Reading,
    Window,
    load_history,
    load_points,
    load_rollups,
    load_sampled,
    load_series,
)
from windlass.tracking.store import ingest, load_latest, load_summaries, log_points
from windlass.tracking.tables import chunks, points, tails
from windlass.wire import runs as wire

SPEC = {"command": "true", "code": None}
ANY_STEP = st.one_of(st.none(), st.integers(0, 8), st.integers(-(2**62), 2**62))
ANY_AT = st.one_of(st.integers(0, 4).map(float), st.integers(0, 10**13).map(lambda ms: ms / 1000))
POINT = st.builds(Logged, st.sampled_from(["a", "b"]), st.floats(), ANY_AT, ANY_STEP)


def take_in(db: Database, run_id: str, source: str, rows: list[Reading]) -> None:
    """As a job's spool is."""
    batch = [MetricPoint(at=row.at, step=row.step, values={"a": row.value}) for row in rows]
    with db.write() as tx:
        ingest(tx, run_id, source, batch, position=0, next_position=len(batch))


def marked(readings: list[Reading]) -> list[tuple[int | None, float, str]]:
    return [(one.step, one.at, mark(one.value)) for one in readings]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.lists(POINT, max_size=30), st.sampled_from(Deed)), max_size=10), st.integers(1, 3))
def test_what_is_read_is_what_was_logged(database: Database, deeds: list[list[Logged] | Deed], most: int) -> None:
    run_id = new_run()
    logged: list[Logged] = []
    for deed in deeds:
        if isinstance(deed, Deed):
            compact(database, run_id, deed, most=most)
        else:
            log(database, run_id, deed)
            logged += deed
    for name in {point.name for point in logged}:
        own = [point for point in logged if point.name == name]
        expected = {(point.step, point.at, mark(point.value)) for point in own}
        with database.read() as tx:
            history = load_history(tx, run_id, name)
            latest = load_latest(tx, [run_id])[run_id][name]
            summary = load_summaries(tx, [run_id])[run_id][name]
            series = load_series(tx, run_id, [name], most=10_000)[name]
        assert set(marked(history)) == expected
        assert len(history) == len(expected)
        assert set(marked(series)) == expected
        places = [(one.at, -math.inf if one.step is None else one.step) for one in history]
        assert places == sorted(places)
        numbers = [point.value for point in own if not math.isnan(point.value)]
        assert (summary.count, summary.min, summary.max) == (
            len(own),
            min(numbers, default=None),
            max(numbers, default=None),
        )
        top = max((-math.inf if p.step is None else p.step, p.at, 0.0 if math.isnan(p.value) else p.value) for p in own)
        value = 0.0 if math.isnan(latest.value) else latest.value
        assert (-math.inf if latest.step is None else latest.step, latest.at, value) == top


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.tuples(st.booleans(), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=12)),
            st.sampled_from(Deed),
        ),
        max_size=8,
    ),
    st.integers(1, 3),
)
def test_of_what_is_sent_once_all_is_read_and_of_the_rest_repeats_once(
    database: Database, service: RunService, deeds: list[tuple[bool, list[tuple[int, int]]] | Deed], most: int
) -> None:
    run_id = service.submit(wire.SubmitRequest(spec=SPEC), idempotency_key=None, user=None).id
    once: Counter[Reading] = Counter()
    again: set[Reading] = set()
    for number, deed in enumerate(deeds):
        if isinstance(deed, Deed):
            compact(database, run_id, deed, most=most)
        elif deed[0]:
            rows = [Reading(step, 10.0, float(value)) for step, value in deed[1]]
            take_in(database, run_id, str(number), rows)
            once.update(rows)
        else:
            rows = [Reading(step, 10.0, value + 0.5) for step, value in deed[1]]
            log(database, run_id, [Logged("a", row.value, row.at, row.step) for row in rows])
            again |= set(rows)
    expected = once + Counter(again)
    with database.read() as tx:
        assert Counter(load_history(tx, run_id, "a")) == expected
        assert Counter(load_series(tx, run_id, ["a"], most=1_000)["a"]) == expected
        assert sum(load_rollups(tx, run_id, "a", most=10).points) == expected.total()
        pages: list[float] = []
        token: str | None = None
        while token or not pages:
            page, token = history.load_page(tx, run_id, "a", most=1, token=token)
            pages += [one.value for one in page]
            if not page:
                break
        assert pages == [one.value for one in load_history(tx, run_id, "a")]


def test_a_point_that_a_job_has_logged_is_not_there_again_when_a_client_sends_it(
    database: Database, service: RunService
) -> None:
    run_id = service.submit(wire.SubmitRequest(spec=SPEC), idempotency_key=None, user=None).id
    take_in(database, run_id, "job", [Reading(3, 10.0, 1.0)] * 2)
    board = [MetricPoint(at=10.0, step=3, values={"a": 1.0}, of_board=True)] * 2  # an event file that is read again
    with database.write() as tx:
        ingest(tx, run_id, "board", board, position=0, next_position=2)
    for _ in range(2):
        log(database, run_id, [Logged("a", 1.0, 10.0, 3)])
        with database.read() as tx:
            assert load_history(tx, run_id, "a") == [Reading(3, 10.0, 1.0)] * 2
        compact(database, run_id, Deed.CHUNK)


def test_chunks_keep_stretches_of_their_own_when_points_come_late(database: Database) -> None:
    run_id = new_run()
    logged = line(5 * FULL)
    late = [point for point in logged if (point.step or 0) % 7 == 3]
    log(database, run_id, [point for point in logged if (point.step or 0) % 7 != 3])
    compact(database, run_id, Deed.CHUNK)
    log(database, run_id, late + late)
    compact(database, run_id, Deed.CHUNK)
    with database.read() as tx:
        rows = tx.execute(
            select(chunks.c.first_step, chunks.c.last_step, chunks.c.points)
            .where(chunks.c.run_id == run_id)
            .order_by(chunks.c.first_step)
        ).all()
        assert sum(row.points for row in rows) == 5 * FULL
        assert all(one.last_step < other.first_step for one, other in itertools.pairwise(rows))
        assert max(row.points for row in rows) <= FULL
        assert list(load_points(tx, run_id, ["loss"])["loss"].steps) == list(range(5 * FULL))


@pytest.mark.parametrize("window", [Window(), Window(steps=(1_000, 150_000)), Window(times=(1_500.0, 2_000.0))])
@pytest.mark.parametrize("most", [50, 1_000])
def test_a_chart_of_many_points_keeps_every_extreme(database: Database, window: Window, most: int) -> None:
    run_id, source = new_run(), random.Random(2)
    logged = [point._replace(value=source.gauss(0, 1)) for point in line(200_000)]
    log(database, run_id, logged[:-500])
    compact(database, run_id, Deed.CHUNK)
    log(database, run_id, logged[-500:])
    wanted = [
        point
        for point in logged
        if (window.steps is None or window.steps[0] <= (point.step or 0) <= window.steps[1])
        and (window.times is None or window.times[0] <= point.at <= window.times[1])
    ]
    with database.read() as tx:
        found = load_rollups(tx, run_id, "loss", most=most, window=window)
        drawn = load_series(tx, run_id, ["loss"], most=most, window=window)["loss"]
    assert len(found.points) <= most
    assert len(drawn) <= most + 4
    assert sum(found.points) == len(wanted)
    assert (found.first_steps[0], found.last_steps[-1]) == (wanted[0].step, wanted[-1].step)
    place = 0
    for row, count in enumerate(found.points):
        part = wanted[place : place + count]
        place += count
        low, high = min(part, key=lambda p: p.value), max(part, key=lambda p: p.value)
        assert (found.mins[row], found.min_steps[row], found.min_ats[row]) == (low.value, low.step, low.at)
        assert (found.maxs[row], found.max_steps[row], found.max_ats[row]) == (high.value, high.step, high.at)
        assert found.sums[row] == pytest.approx(sum(point.value for point in part))
    values = {one.step: one.value for one in drawn}
    assert values.items() <= {point.step: point.value for point in wanted}.items()
    assert (drawn[0].step, drawn[-1].step) == (wanted[0].step, wanted[-1].step)
    assert {min(values.values()), max(values.values())} == {min(p.value for p in wanted), max(p.value for p in wanted)}


def test_runs_without_the_metric_are_not_sampled(database: Database) -> None:
    with_it, without = new_run(), new_run()
    log(database, with_it, line(10))
    with database.read() as tx:
        found = load_sampled(tx, [with_it, without], "loss", steps=(2, 4), most=100)
    assert {run_id: [one.step for one in readings] for run_id, readings in found.items()} == {with_it: [2, 3, 4]}


def test_ten_thousand_metrics_in_one_run(database: Database) -> None:
    run_id, compactor = new_run(), Compactor(database, FakeClock())
    names = [f"layer.{number}/norm" for number in range(10_000)]
    for step in range(3):
        log(database, run_id, [Logged(name, float(number), 10.0 + step, step) for number, name in enumerate(names)])
    compactor.sweep()
    compact(database, run_id, Deed.CHUNK)
    with database.read() as tx:
        assert len(load_latest(tx, [run_id])[run_id]) == 10_000
        assert load_history(tx, run_id, names[77]) == [Reading(step, 10.0 + step, 77.0) for step in range(3)]


def test_points_of_the_version_before_are_read_and_moved(database: Database, service: RunService) -> None:
    run_id = service.submit(wire.SubmitRequest(spec=SPEC), idempotency_key=None, user=None).id
    rows = [
        {"run_id": run_id, "name": name, "seq": seq, "step": seq, "at": 5.0 + seq, "value": None if seq == 2 else 0.5}
        for name in ("a", "b")
        for seq in range(5)
    ]
    with database.write() as tx:
        tx.execute(insert(points), rows)
        log_points(tx, run_id, [Logged("a", 1.0, 100.0, 9)])

    def read() -> list[object]:
        with database.read() as tx:
            return [marked(load_history(tx, run_id, name)) for name in ("a", "b")]

    before = read()
    assert [len(part) for part in before] == [6, 5]  # type: ignore[arg-type]
    clock, now = FakeClock(), [0.0]
    compactor = Compactor(database, clock, monotonic=lambda: now[0])
    compactor.look_at_old()
    with database.write() as tx:
        tx.execute(update(runs).where(runs.c.id == run_id).values(ended_at=clock.now()))
    clock.advance(20 * 86_400.0)
    now[0] += 20 * 86_400.0
    compactor.look_at_old()
    with database.read() as tx:
        # Servers of the version before, of which some may still run, find points nowhere else.
        assert len(tx.execute(select(points.c.seq)).all()) == 10
    clock.advance(20 * 86_400.0)
    now[0] += 20 * 86_400.0
    compactor.look_at_old()
    assert read() == before
    with database.read() as tx:
        assert tx.execute(select(points.c.seq)).all() == []
        assert len(tx.execute(select(tails.c.id).where(tails.c.run_id == run_id)).all()) == 3


def test_old_points_are_thinned_and_older_ones_go(database: Database) -> None:
    run_id, clock, now = new_run(), FakeClock(), [0.0]
    start = clock.now()
    logged = [Logged("loss", math.sin(step), start + step, step) for step in range(2 * FULL)]
    log(database, run_id, logged)
    compact(database, run_id, Deed.CHUNK)
    keeping = Keeping(points_s=1_000.0, rollups_s=100_000.0)
    compactor = Compactor(database, clock, keeping=keeping, monotonic=lambda: now[0])

    def steps() -> list[int | None]:
        with database.read() as tx:
            return [one.step for one in load_history(tx, run_id, "loss")]

    clock.advance(FULL + 1_001.0)
    compactor.look_at_old()
    thinned = steps()
    assert len(thinned) == FULL + FULL // 32
    with database.read() as tx:
        stretch = load_rollups(tx, run_id, "loss", most=10)
    assert min(stretch.mins) == min(point.value for point in logged)
    # What comes late is kept beside it.
    log(database, run_id, [Logged("loss", 7.0, start + 5.5, 5)])
    compact(database, run_id, Deed.CHUNK)
    assert len(steps()) == len(thinned) + 1
    clock.advance(200_000.0)
    now[0] += 10_000.0
    compactor.look_at_old()
    assert steps() == []
    with database.read() as tx:
        assert load_latest(tx, [run_id])[run_id]["loss"].step == 2 * FULL - 1


def test_a_chart_has_least_greatest_and_mean_of_stretches(database: Database, service: RunService) -> None:
    spec = {"command": "true", "code": None}
    run_id = service.submit(wire.SubmitRequest(spec=spec), idempotency_key=None, user=None).id
    log(database, run_id, [Logged("x", value, 10.0 + n, n) for n, value in enumerate([1.0, 3.0, math.nan, math.nan])])
    chart = service.chart(run_id, "x", most=2, window=Window())
    assert chart.model_dump() == {
        "name": "x",
        "points": [2, 2],
        "first_steps": [0, 2],
        "last_steps": [1, 3],
        "first_at": [10.0, 12.0],
        "last_at": [11.0, 13.0],
        "min": [1.0, None],
        "max": [3.0, None],
        "mean": [2.0, None],
    }
    [series] = service.metrics(run_id, names=["x"], most=10, window=Window(times=(10.5, 12.5))).series
    told = json.loads(series.model_dump_json())
    assert (told["steps"], told["values"]) == ([1, 2], [3.0, "NaN"])


def test_a_few_of_many_metrics_are_told_losses_first(database: Database, service: RunService) -> None:
    run_id = service.submit(wire.SubmitRequest(spec=SPEC), idempotency_key=None, user=None).id
    for number in (0, 1):
        log(database, run_id, [Logged(name, 1.0, 10.0, number) for name in ("a", "val/loss", "system/x", "b")])
        compact(database, run_id, Deed.CHUNK)
    found = service.metrics(run_id, names=None, most=10, limit=2).series
    assert [(one.name, one.steps) for one in found] == [("val/loss", [0, 1]), ("a", [0, 1])]
    with database.read() as tx:
        statements: list[str] = []
        event.listen(tx, "before_cursor_execute", lambda *call: statements.append(call[2]))
        assert len(load_series(tx, run_id, ["a", "b", "val/loss", "system/x"], most=10)) == 4
    assert len(statements) == 4  # for however many metrics


def test_whoever_reads_while_points_are_packed_misses_none(database: Database) -> None:
    run_id = new_run()
    log(database, run_id, line(100))

    def pack(*_: object) -> None:
        compact(database, run_id, Deed.CHUNK)

    with database.read() as tx:
        event.listen(tx, "after_cursor_execute", pack, once=True)  # by then it is known which chunks there are: none
        assert len(load_history(tx, run_id, "loss")) == 100
    with database.read() as tx:
        assert packing.load_tails(tx, run_id) == []
        assert len(load_history(tx, run_id, "loss")) == 100
