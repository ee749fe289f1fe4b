"""Writers that change several runs at once do not wait for each other for ever."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contract.locks import until_it_waits
from windlass.controller.commit import commit_placements
from windlass.core.resources import NodeShare, Placement
from windlass.db.database import Database
from windlass.runs import store
from windlass.runs.records import RunRecord
from windlass.runs.service import RunService
from windlass.runs.tracked import put_own_tags
from windlass.runs.types import EventKind, RunState
from windlass.tenancy.prices import PriceBook
from windlass.tracking.store import lock
from windlass.wire import runs as wire

pytestmark = pytest.mark.parametrize(
    "database_url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
PLACEMENT = Placement(engine="fake", shares=(NodeShare(node="n", cpus=1, memory_bytes=0, gpu_indices=()),))


@pytest.fixture
def pair(service: RunService, database: Database) -> list[RunRecord]:
    """Two runs, the one with the later id first: so may the queue have them."""
    spec = wire.SubmitRequest(spec={"command": "true", "code": None})
    ids = [service.submit(spec, idempotency_key=None, user=None).id for _ in range(2)]
    with database.read() as tx:
        return sorted(store.load_runs(tx, ids), key=lambda run: run.id, reverse=True)


def test_placing_and_tagging_the_same_runs(database: Database, pair: list[RunRecord]) -> None:
    later, earlier = pair

    def place() -> None:
        with database.write() as tx:
            commit_placements(tx, [(later, PLACEMENT), (earlier, PLACEMENT)], prices=PriceBook(), now=1.0)

    with ThreadPoolExecutor(1) as pool:
        with database.write() as tx:  # as writes of several clients are grouped: by the ids of their runs
            put_own_tags(tx, earlier.id, {"team": "a"})
            placing = pool.submit(place)
            until_it_waits(database, placing)
            put_own_tags(tx, later.id, {"team": "b"})
        placing.result()
    with database.read() as tx:
        found = store.load_runs(tx, [run.id for run in pair])
    assert {run.id: run.tags for run in found} == {earlier.id: {"team": "a"}, later.id: {"team": "b"}}
    assert {run.state for run in found} == {RunState.STARTING}


def test_moving_runs_that_change_in_different_ways(database: Database, pair: list[RunRecord]) -> None:
    """They are written by several statements, each for those that change alike."""
    later, earlier = pair

    def cancel() -> None:
        moves = [
            store.Move(run=later, kind=EventKind.CANCELLED, message="", changes={"ended_at": 1.0}),
            store.Move(run=earlier, kind=EventKind.CANCELLED, message="", changes={"retry_at": None}),
        ]
        with database.write() as tx:
            store.advance_all(tx, moves, now=1.0)

    with ThreadPoolExecutor(1) as pool:
        with database.write() as tx:
            put_own_tags(tx, earlier.id, {"team": "a"})
            cancelling = pool.submit(cancel)
            until_it_waits(database, cancelling)
            put_own_tags(tx, later.id, {"team": "b"})
        cancelling.result()
    with database.read() as tx:
        assert {run.state for run in store.load_runs(tx, [run.id for run in pair])} == {RunState.CANCELLED}


@pytest.mark.parametrize(("first", "second"), [(("b", "a"), ("a",)), (("a",), ("c", "a"))])
def test_one_run_and_several_are_locked_alike(
    database: Database, first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    def wait() -> None:
        with database.write() as tx:
            lock(tx, *second)

    with ThreadPoolExecutor(1) as pool:
        with database.write() as tx:
            lock(tx, *first)
            waiting = pool.submit(wait)
            until_it_waits(database, waiting)
            assert not waiting.done()
        waiting.result()
