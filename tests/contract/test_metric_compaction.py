"""What becomes of points that have arrived, whoever else is at it: nothing is lost, and nothing done twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection

from tests.contract.metric_logging import compact, line, log, new_run
from windlass.controller.compactor import Compactor
from windlass.core.errors import Conflict
from windlass.db.database import Database
from windlass.testing.clock import FakeClock
from windlass.tracking import chunks as packing
from windlass.tracking.compaction import MANY, Compaction, Deed
from windlass.tracking.series import (
    load_history,
)


def test_of_two_that_compact_the_same_one_does(database: Database) -> None:
    run_id = new_run()
    for start in range(0, 100, 10):
        log(database, run_id, line(10, start=start))
    with database.read() as tx:
        ids = tuple(tail.id for tail in packing.load_tails(tx, run_id))
    start_together = threading.Barrier(4)

    def race(deed: Deed) -> bool:
        start_together.wait()
        try:
            packing.compact(database, run_id, Compaction(deed=deed, tail_ids=ids))
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(race, [Deed.CHUNK, Deed.CHUNK, Deed.MERGE, Deed.MERGE])) == 1
    with database.read() as tx:
        assert [one.step for one in load_history(tx, run_id, "loss")] == list(range(100))


class _Held:
    """A database to which a server comes to write only after others have."""

    def __init__(self, db: Database, meanwhile: Callable[[], None]) -> None:
        self._db, self._meanwhile = db, meanwhile
        self.read = db.read

    @contextmanager
    def write(self) -> Iterator[Connection]:
        self._meanwhile()
        with self._db.write() as tx:
            yield tx


@pytest.mark.parametrize("deed", Deed)
@pytest.mark.parametrize("theirs", Deed)
def test_a_server_that_was_held_up_removes_nothing_that_it_has_not_read(
    database: Database, deed: Deed, theirs: Deed
) -> None:
    """Its lease may have passed on meanwhile. What the others merge has the id of the oldest, and one that is free may
    be given to what comes next."""
    run_id = new_run()
    log(database, run_id, line(3))

    def meanwhile() -> None:
        log(database, run_id, line(3, start=3))
        compact(database, run_id, theirs)
        log(database, run_id, line(3, start=6))

    with database.read() as tx:
        ids = tuple(tail.id for tail in packing.load_tails(tx, run_id))
    held: Any = _Held(database, meanwhile)
    with pytest.raises(Conflict):
        packing.compact(held, run_id, Compaction(deed=deed, tail_ids=ids))
    with database.read() as tx:
        assert [one.step for one in load_history(tx, run_id, "loss")] == list(range(9))


def test_writers_and_the_compactor_lose_nothing_to_each_other(database: Database) -> None:
    run_id = new_run()
    compactor = Compactor(database, FakeClock())

    def write(number: int) -> None:
        for start in range(0, 200, 5):
            log(database, run_id, line(5, start=1_000 * number + start))

    with ThreadPoolExecutor(3) as pool:
        writers = [pool.submit(write, number) for number in range(3)]
        done = 0
        while not all(writer.done() for writer in writers):
            done += compactor.sweep()
        for writer in writers:
            writer.result()
    done += compactor.sweep()
    assert done > 0
    with database.read() as tx:
        assert len(packing.load_tails(tx, run_id)) < 2 * MANY
        found = [one.step for one in load_history(tx, run_id, "loss")]
    assert found == sorted(1_000 * number + step for number in range(3) for step in range(200))


def test_a_run_that_logs_no_more_gets_chunks_of_what_there_is(database: Database) -> None:
    run_id, now = new_run(), [0.0]
    compactor = Compactor(database, FakeClock(), monotonic=lambda: now[0], settled_s=60.0)
    log(database, run_id, line(3))
    compactor.sweep()
    with database.read() as tx:
        assert len(packing.load_tails(tx, run_id)) == 1
    now[0] += 61.0
    compactor.sweep()
    with database.read() as tx:
        assert packing.load_tails(tx, run_id) == []
        assert [one.step for one in load_history(tx, run_id, "loss")] == [0, 1, 2]
