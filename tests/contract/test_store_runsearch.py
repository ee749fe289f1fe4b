"""A search by a metric gives the same pages whichever way it finds them: by walking the values or by looking at every
run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from sqlalchemy import insert

from windlass.db.database import Database
from windlass.experiments import inputs, runstore
from windlass.experiments.tables import run_params, run_tags, tracked_runs
from windlass.experiments.types import Dataset, DatasetInput, ModelOutput, Pair, TrackedRun, View
from windlass.tracking.tables import summaries

MANY = 700  # enough for it to be worth walking values
OURS, OTHERS = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    id: str
    experiment: int
    start_ms: int
    stage: str
    values: dict[str, float | None]  # None is NaN


@pytest.fixture
def kept(database: Database) -> list[Kept]:
    source = random.Random(7)
    runs = [
        Kept(
            id=f"{source.getrandbits(128):032x}",
            experiment=OTHERS if number % 10 == 0 else OURS,
            start_ms=source.randrange(5),
            stage="deleted" if source.random() < 0.1 else "active",
            values={
                name: None if source.random() < 0.1 else source.randrange(12) / 4
                for name in ("loss", "acc", "rare")
                if source.random() < (0.02 if name == "rare" else 0.8)
            },
        )
        for number in range(MANY)
    ]
    empty = {"name": "n", "user": "", "status": "RUNNING", "end_ms": None, "artifact_uri": "a"}
    with database.write() as tx:
        heads = [
            {**empty, "id": run.id, "experiment_id": run.experiment, "start_ms": run.start_ms, "stage": run.stage}
            for run in runs
        ]
        tx.execute(insert(tracked_runs), heads)
        latest = [
            {"run_id": run.id, "name": name, "last": value, "last_at": 1.5, "last_step": 3, "points": 1}
            for run in runs
            for name, value in run.values.items()
        ]
        tx.execute(insert(summaries), latest)
    return runs


def pages(database: Database, order: list[str], filter: str = "", most: int = 60) -> Iterator[list[TrackedRun]]:
    token: str | None = None
    while True:
        with database.read() as tx:
            found, token = runstore.search_runs(
                tx, experiments=[OURS], filter=filter, order=order, view=View.ACTIVE_ONLY, most=most, token=token
            )
        yield found
        if token is None:
            return


def ordered(kept: list[Kept], name: str, *, ascending: bool, below: float | None = None) -> list[str]:
    """Those without a value come last, after those where it is NaN; among equals the newest comes first."""

    def place(run: Kept) -> tuple[int, float, int, str]:
        value = run.values.get(name)
        rank = 2 if name not in run.values else 1 if value is None else 0
        return rank, (value or 0.0) * (1 if ascending else -1), -run.start_ms, run.id

    found = [run for run in kept if run.experiment == OURS and run.stage == "active"]
    if below is not None:
        found = [run for run in found if (acc := run.values.get("acc")) is not None and acc < below]
    return [run.id for run in sorted(found, key=place)]


@pytest.mark.parametrize("ascending", [True, False])
@pytest.mark.parametrize("name", ["loss", "rare"])
def test_pages_by_a_metric_are_those_of_all_runs_in_order(
    database: Database, kept: list[Kept], name: str, ascending: bool
) -> None:
    found = list(pages(database, [f"metrics.{name} {'ASC' if ascending else 'DESC'}"]))
    assert [run.info.id for page in found for run in page] == ordered(kept, name, ascending=ascending)
    assert [len(page) for page in found[:-1]] == [60] * (len(found) - 1)


@pytest.mark.parametrize("ascending", [True, False])
def test_pages_of_what_a_filter_leaves_are_in_order(database: Database, kept: list[Kept], ascending: bool) -> None:
    order = [f"metrics.loss {'ASC' if ascending else 'DESC'}"]
    found = [run.info.id for page in pages(database, order, "metrics.acc < 1.5", most=20) for run in page]
    assert found == ordered(kept, "loss", ascending=ascending, below=1.5)


def test_a_second_order_decides_among_equals(database: Database, kept: list[Kept]) -> None:
    first = next(pages(database, ["metrics.loss DESC", "attributes.start_time ASC"]))
    starts = {run.id: run.start_ms for run in kept}
    losses = {run.id: run.values.get("loss") or 0.0 for run in kept}
    by = [(-losses[run.info.id], starts[run.info.id], run.info.id) for run in first]
    assert by == sorted(by)
    assert len({loss for loss, _, _ in by}) < len(by), "there are equals among them"


def test_a_page_has_what_is_kept_of_each_run(database: Database, kept: list[Kept]) -> None:
    first, second, *_ = [run.id for run in kept if run.experiment == OURS and run.stage == "active"]
    data = DatasetInput(
        dataset=Dataset(name="d", digest="1", source_type="local", source="s"), tags=[Pair("mlflow.data.context", "x")]
    )
    with database.write() as tx:
        for table, key in ((run_params, "p"), (run_tags, "t")):
            tx.execute(insert(table), [{"run_id": id, "key": key, "value": id} for id in (first, second)])
        inputs.put_models(tx, first, "output", [ModelOutput("m-2", 5), ModelOutput("m-1", 4)])
        inputs.put_models(tx, second, "input", [ModelOutput("m-1", 0)])
        inputs.put_inputs(tx, OURS, second, [data])
    found = {run.info.id: run for page in pages(database, ["metrics.loss DESC"]) for run in page}
    assert found[first].params == [Pair("p", first)]
    assert found[second].tags == [Pair("t", second)]
    assert found[first].model_outputs == [ModelOutput("m-2", 5), ModelOutput("m-1", 4)]
    assert (found[second].model_inputs, found[second].datasets) == (["m-1"], [data])
    assert (list(found[first].model_inputs), list(found[first].datasets)) == ([], [])
    for run in kept:
        if run.id in found:
            shown = {key: None if value != value else value for key, value, _, _ in found[run.id].metrics}
            assert shown == run.values
            assert all((at_ms, step) == (1500, 3) for _, _, at_ms, step in found[run.id].metrics)
