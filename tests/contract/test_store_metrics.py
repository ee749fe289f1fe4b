"""Metric points arrive exactly once, whatever is repeated, torn or raced."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from windlass.agent.layout import metrics_spool
from windlass.controller.collecting import commit_spooled, read_spools
from windlass.controller.commit import commit_placements
from windlass.controller.decide import MarkRunning
from windlass.controller.lease import ShardLeases
from windlass.controller.recording import Recorder, Work
from windlass.core.errors import Conflict, NotFound
from windlass.core.resources import NodeShare, Placement
from windlass.core.wanted import PLAN_TAG
from windlass.db.database import Database
from windlass.engines.contract import Observation, Phase
from windlass.experiments.runservice import TrackedRunService
from windlass.experiments.runstore import load_tag
from windlass.experiments.types import RUN_NAME, Pair
from windlass.runs import store
from windlass.runs.service import RunService
from windlass.runs.tracked import put_own_tags
from windlass.tenancy.prices import PriceBook
from windlass.testing.clock import FakeClock
from windlass.tracking.points import MetricPoint
from windlass.tracking.store import ingest, load_positions
from windlass.wire import runs as wire


@pytest.fixture
def run_id(service: RunService) -> str:
    spec = {"command": "true", "code": None}
    return service.submit(wire.SubmitRequest(spec=spec), idempotency_key=None, user=None).id


def batch(seq: int, *steps: int, source: str = "s", total: int | None = None) -> wire.MetricBatch:
    points = [wire.Point(step=step, at=1_000.0 + step, values={"loss": 1 / (step + 1)}, total=total) for step in steps]
    return wire.MetricBatch(source=source, seq=seq, points=points)


def steps(service: RunService, run_id: str) -> list[int | None]:
    [series] = service.metrics(run_id, names=["loss"], most=10_000).series
    return series.steps


def test_points_are_kept_in_order(service: RunService, run_id: str) -> None:
    assert service.ingest(run_id, batch(0, 0, 1, 2)) == wire.MetricReceipt(accepted=3, next_seq=3)
    assert service.ingest(run_id, batch(3, 3)) == wire.MetricReceipt(accepted=1, next_seq=4)
    assert steps(service, run_id) == [0, 1, 2, 3]


def test_a_repeat_and_an_overlap_add_nothing_twice(service: RunService, run_id: str) -> None:
    service.ingest(run_id, batch(0, 0, 1, 2))
    assert service.ingest(run_id, batch(0, 0, 1, 2)) == wire.MetricReceipt(accepted=0, next_seq=3)
    assert service.ingest(run_id, batch(1, 1, 2, 3, 4)) == wire.MetricReceipt(accepted=2, next_seq=5)
    assert service.ingest(run_id, batch(0)) == wire.MetricReceipt(accepted=0, next_seq=5)
    assert steps(service, run_id) == [0, 1, 2, 3, 4]


def test_a_gap_is_refused_and_leaves_nothing(service: RunService, run_id: str) -> None:
    service.ingest(run_id, batch(0, 0))
    with pytest.raises(Conflict, match="source s is at 1, not 5"):
        service.ingest(run_id, batch(5, 5))
    assert steps(service, run_id) == [0]


def test_sources_are_counted_apart(service: RunService, run_id: str) -> None:
    service.ingest(run_id, batch(0, 0, source="a"))
    assert service.ingest(run_id, batch(0, 1, source="b")).accepted == 1


def test_the_same_batch_from_many_threads_is_taken_once(service: RunService, run_id: str) -> None:
    start = threading.Barrier(8)

    def race(_number: int) -> int:
        start.wait()
        try:
            return service.ingest(run_id, batch(0, 0, 1, 2)).accepted
        except Conflict:
            return 0  # told to ask again, as a client would

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(race, range(8))) == 3
    assert steps(service, run_id) == [0, 1, 2]


def test_different_sources_at_once_lose_nothing(service: RunService, run_id: str) -> None:
    """All write the same metric of the same run: the place of a point within it is taken once."""
    start = threading.Barrier(6)

    def race(number: int) -> None:
        start.wait()
        for seq in range(5):
            service.ingest(run_id, batch(seq, number * 100 + seq, source=f"rank-{number}"))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(race, range(6)))
    assert sorted(step or 0 for step in steps(service, run_id)) == [n * 100 + s for n in range(6) for s in range(5)]


def test_summaries_and_progress_follow(service: RunService, run_id: str) -> None:
    service.ingest(run_id, batch(0, 0, 1, total=11))
    service.ingest(run_id, batch(2, 3, 4))
    view = service.view(run_id)
    loss = view.metrics["loss"]
    assert (loss.last, loss.step, loss.min, loss.max, loss.count) == (1 / 5, 4, 1 / 5, 1.0, 4)


@pytest.mark.parametrize(
    ("value", "shown", "least"),
    [(math.nan, "NaN", None), (math.inf, "Infinity", "Infinity"), (-math.inf, "-Infinity", "-Infinity")],
)
def test_numbers_that_json_has_not(
    service: RunService, database: Database, run_id: str, value: float, shown: str, least: str | None
) -> None:
    point = MetricPoint(at=1.0, step=0, values={"x": value})
    with database.write() as tx:
        ingest(tx, run_id, "s", [point], position=0, next_position=1)
    [series] = service.metrics(run_id, names=None, most=100).model_dump(mode="json")["series"]
    assert series["values"] == [shown]
    summary = service.view(run_id).model_dump(mode="json")["metrics"]["x"]
    assert (summary["last"], summary["min"], summary["count"]) == (shown, least, 1)
    assert service.metrics(run_id, names=None, most=100).model_dump_json()


def test_doubles_come_back_bit_for_bit(service: RunService, database: Database, run_id: str) -> None:
    values = [0.1 + 0.2, 1e-310, 2**53 + 1.0, 1.7976931348623157e308, -0.0]
    with database.write() as tx:
        points = [MetricPoint(at=1.1, step=None, values={"x": value}) for value in values]
        ingest(tx, run_id, "s", points, position=0, next_position=5)
    [series] = service.metrics(run_id, names=None, most=100).series
    assert series.values == values
    assert series.at == [1.1] * 5


def test_a_long_series_is_thinned_and_keeps_its_ends(service: RunService, run_id: str) -> None:
    service.ingest(run_id, batch(0, *range(1_000)))
    [series] = service.metrics(run_id, names=["loss"], most=50).series
    assert 45 <= len(series.steps) <= 52
    assert (series.steps[0], series.steps[-1]) == (0, 999)


def test_an_unknown_metric_is_named_with_the_nearest(service: RunService, run_id: str) -> None:
    service.ingest(run_id, batch(0, 0))
    with pytest.raises(NotFound, match="unknown metric 'los'; did you mean 'loss'"):
        service.metrics(run_id, names=["los"], most=10)


def test_points_without_values_move_on_too(service: RunService, run_id: str) -> None:
    empty = wire.MetricBatch(source="s", seq=0, points=[wire.Point(at=1.0, values={}, step=1)])
    assert service.ingest(run_id, empty).next_seq == 1
    assert service.metrics(run_id, names=None, most=10).series == []


def collect(db: Database, run_id: str, folder: Path, *, drain: bool = False) -> None:
    with db.read() as tx:
        positions = load_positions(tx, [run_id])
    spooled = list(read_spools(run_id, f"{run_id}.1", [str(folder)], positions, drain=drain))
    with db.write() as tx:
        commit_spooled(tx, spooled, now=0.0)


def test_spools_are_collected_exactly_once(
    service: RunService, database: Database, run_id: str, tmp_path: Path
) -> None:
    def spool(rank: int, text: str) -> None:
        with (tmp_path / metrics_spool(rank)).open("a") as file:
            file.write(text)

    lines = [json.dumps({"t": 1_000 + n, "s": n, "m": {"loss": n}}) + "\n" for n in range(6)]
    spool(0, lines[0] + "garbage\n" + lines[1][:7])
    collect(database, run_id, tmp_path)
    collect(database, run_id, tmp_path)
    assert steps(service, run_id) == [0]
    spool(0, lines[1][7:] + lines[2])
    spool(1, lines[3])
    collect(database, run_id, tmp_path)
    spool(1, lines[4] + lines[5][:-1])
    collect(database, run_id, tmp_path, drain=True)
    assert sorted(step or 0 for step in steps(service, run_id)) == [0, 1, 2, 3, 4]


def test_a_spool_that_is_none_costs_nobody_else_anything(
    service: RunService, database: Database, run_id: str, tmp_path: Path
) -> None:
    """Programs may do anything in their folders."""
    (tmp_path / metrics_spool(9)).mkdir()
    (tmp_path / metrics_spool(8)).symlink_to(tmp_path / metrics_spool(8))
    (tmp_path / metrics_spool(0)).write_text('{"t": 1, "s": 1, "m": {"loss": 1}}\n')
    collect(database, run_id, tmp_path, drain=True)
    collect(database, run_id, tmp_path / metrics_spool(0))
    assert steps(service, run_id) == [1]


def test_two_controllers_with_one_spool_cannot_both_count_it(
    service: RunService, database: Database, run_id: str, tmp_path: Path
) -> None:
    (tmp_path / metrics_spool(0)).write_text('{"t": 1, "s": 1, "m": {"loss": 1}}\n')
    first = list(read_spools(run_id, f"{run_id}.1", [str(tmp_path)], {}))
    second = list(read_spools(run_id, f"{run_id}.1", [str(tmp_path)], {}))
    with database.write() as tx:
        commit_spooled(tx, first, now=0.0)
    with pytest.raises(Conflict), database.write() as tx:
        commit_spooled(tx, second, now=0.0)
    assert steps(service, run_id) == [1]


def test_a_spool_that_fills_more_than_one_read_is_drained_whole(
    service: RunService, database: Database, run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.controller.collecting._MOST_BYTES", 100)
    lines = [json.dumps({"t": 1_000 + n, "s": n, "m": {"loss": n}}) + "\n" for n in range(20)]
    (tmp_path / metrics_spool(0)).write_text("".join(lines))
    collect(database, run_id, tmp_path)
    assert 0 < len(steps(service, run_id)) < 20
    collect(database, run_id, tmp_path, drain=True)
    assert steps(service, run_id) == list(range(20))


def test_a_line_longer_than_a_read_does_not_stop_the_spool_for_ever(
    service: RunService, database: Database, run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.controller.collecting._MOST_BYTES", 100)
    (tmp_path / metrics_spool(0)).write_text("x" * 1_000 + '\n{"t": 1, "s": 5, "m": {"loss": 1}}\n')
    for _ in range(15):
        collect(database, run_id, tmp_path)
    assert steps(service, run_id) == [5]


def test_alerts_become_events_once_with_the_position_they_were_read_to(
    service: RunService, run_id: str, database: Database, tmp_path: Path
) -> None:
    said = {"kind": "nan", "message": "the loss is no number"}
    lines = [{"t": 1.0, "s": 7, "a": said}, {"t": 2.0, "s": 8, "m": {"loss": 1.0}}, {"t": 3.0, "a": said}]
    (tmp_path / metrics_spool(2)).write_text("".join(json.dumps(line) + "\n" for line in lines))
    spooled = list(read_spools(run_id, f"{run_id}.3", [str(tmp_path)], {}))
    with database.write() as tx:
        commit_spooled(tx, spooled, now=0.0)
    with pytest.raises(Conflict), database.write() as tx:
        commit_spooled(tx, spooled, now=0.0)
    alerts = [event for event in service.events(run_id, after=0).events if event.kind == "alert"]
    assert [(event.at, event.attempt, event.message) for event in alerts] == [
        (1.0, 3, "nan at step 7: the loss is no number"),
        (3.0, 3, "nan: the loss is no number"),
    ]
    assert alerts[0].data == {"kind": "nan", "step": 7, "rank": 2}
    assert steps(service, run_id) == [8]


def test_what_all_ranks_say_is_one_event_of_an_attempt(
    service: RunService, run_id: str, database: Database, tmp_path: Path
) -> None:
    said = {"kind": "nan", "message": "the loss is no number"}
    for rank in range(3):
        lines = [{"t": 1.0, "s": 7, "a": {**said, "once": True}}, {"t": 2.0, "s": 7, "a": said}]
        (tmp_path / metrics_spool(rank)).write_text("".join(json.dumps(line) + "\n" for line in lines))
    for attempt in (1, 2):
        for spooled in read_spools(run_id, f"{run_id}.{attempt}", [str(tmp_path)], {}):
            with database.write() as tx:
                commit_spooled(tx, [spooled], now=0.0)
    alerts = [event for event in service.events(run_id, after=0).events if event.kind == "alert"]
    assert [(event.attempt, event.at) for event in alerts] == [
        (attempt, at) for attempt in (1, 2) for at in (1.0, 2.0, 2.0, 2.0)
    ]


def test_the_plan_that_a_job_tells_is_a_tag_of_the_run(
    service: RunService, run_id: str, database: Database, tmp_path: Path
) -> None:
    plans = ["data=2", "data=1,shard=2\0,zero=2"]
    (tmp_path / metrics_spool(0)).write_text("".join(json.dumps({"t": 1.0, "p": plan}) + "\n" for plan in plans))
    with database.write() as tx:
        commit_spooled(tx, list(read_spools(run_id, f"{run_id}.1", [str(tmp_path)], {})), now=0.0)
        tracked = load_tag(tx, run_id, PLAN_TAG)
    assert service.view(run_id).tags[PLAN_TAG] == tracked == "data=1,shard=2\N{REPLACEMENT CHARACTER},zero=2"


def test_a_flood_of_alerts_is_not_kept(service: RunService, run_id: str, database: Database, tmp_path: Path) -> None:
    line = json.dumps({"t": 1.0, "a": {"kind": "x", "message": "y"}}) + "\n"
    (tmp_path / metrics_spool(0)).write_text(1000 * line)
    with database.write() as tx:
        commit_spooled(tx, list(read_spools(run_id, f"{run_id}.1", [str(tmp_path)], {})), now=0.0)
    events = service.events(run_id, after=0).events
    assert sum(event.kind == "alert" for event in events) == 20


@pytest.fixture
def told(database: Database) -> Iterator[list[tuple[str, Any]]]:
    """What is asked of the database, with its values."""
    found: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        found.append((" ".join(statement.split()), values))

    event.listen(database.engine, "before_cursor_execute", note)
    yield found
    event.remove(database.engine, "before_cursor_execute", note)


def locked(told: list[tuple[str, Any]]) -> list[str]:
    """Locks that two writers may meet at, in the order they are taken."""
    kinds = {"pg_advisory_xact_lock": "points", "UPDATE runs ": "run", "FROM runs ": "run", "UPDATE tracked_": "face"}
    takes = [one for one, _ in told if "UPDATE" in one or "advisory" in one]
    return list(dict.fromkeys(kind for one in takes for sign, kind in kinds.items() if sign in one))


@pytest.mark.parametrize("database_url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_tags_are_locked_in_the_order_of_the_controller(
    database: Database, run_id: str, clock: FakeClock, told: list[tuple[str, Any]]
) -> None:
    tracked = TrackedRunService(db=database, clock=clock, own_tags=put_own_tags)
    tracked.log_batch(run_id, [], [], [Pair("team", "a"), Pair(RUN_NAME, "new")])
    assert locked(told) == ["points", "run", "face"]
    told.clear()
    tracked.update(run_id, name="newer")
    assert locked(told) == ["points", "face"]


@pytest.mark.parametrize("database_url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_all_runs_of_a_pass_are_locked_before_any_changes(
    database: Database, service: RunService, told: list[tuple[str, Any]]
) -> None:
    spec = wire.SubmitRequest(spec={"command": "true", "code": None})
    ids = sorted(service.submit(spec, idempotency_key=None, user=None).id for _ in range(3))
    placement = Placement(engine="fake", shares=(NodeShare(node="n", cpus=1, memory_bytes=0, gpu_indices=()),))
    with database.write() as tx:
        commit_placements(tx, [(one, placement) for one in store.load_runs(tx, ids)], prices=PriceBook(), now=1.0)
    seen = Observation(phase=Phase.RUNNING)
    with database.read() as tx:
        work = [
            Work(
                run=run, attempt=store.load_attempts(tx, run.id)[0], seen=seen, decisions=[MarkRunning(started_at=2.0)]
            )
            for run in reversed(store.load_runs(tx, ids))
        ]
    lease = ShardLeases(1, monotonic=lambda: 0.0, ttl_s=10.0)
    assert lease.acquire(database)
    recorder = Recorder(database, lease, PriceBook(), why_away=str, about_to_write=list)
    told.clear()
    recorder.record(work, 3.0)
    assert locked(told)[:2] == ["points", "run"]
    [values] = [values for statement, values in told if "advisory" in statement]
    assert ids in list(values.values())
