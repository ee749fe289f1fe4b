"""What becomes of the logs of attempts that are over, on each kind of database."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import text, update

from windlass.agent.layout import SUPERVISOR_LOG, rank_log
from windlass.agent.ranklog import timestamp
from windlass.blobs.local import LocalBlobs
from windlass.controller import sweeper as module
from windlass.controller.archivist import Archivist
from windlass.core.errors import Unavailable
from windlass.core.ids import slot_of
from windlass.core.resources import NodeShare, Placement
from windlass.db.database import Database
from windlass.runs import store
from windlass.runs.service import RunService
from windlass.runs.store import Slots
from windlass.runs.tables import attempts
from windlass.runs.types import AttemptState
from windlass.testing.clock import FakeClock
from windlass.tracking import archiving, storedlogs
from windlass.tracking.logs import find_logs
from windlass.tracking.storedlogs import LogPlace, StoredLogs, append
from windlass.wire import runs as wire


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


class Bucket(LocalBlobs):
    """A store that goes away, or takes its user with it."""

    away = False
    puts_left: int | None = None

    def put(self, data: bytes) -> str:
        if self.away:
            raise Unavailable("the bucket is away")
        digest = super().put(data)
        if self.puts_left is not None:
            self.puts_left -= 1
            if self.puts_left < 0:
                raise Killed
        return digest


@dataclass
class Stage:
    db: Database
    service: RunService
    clock: FakeClock
    bucket: Bucket
    folder: Path

    def ended(self, logs: dict[str, bytes] | None, *, released: bool = True) -> str:
        """An attempt that is over, with these files in its node's folder; None: the folder is not to be seen."""
        spec = {"command": "x", "code": None}
        run_id = self.service.submit(wire.SubmitRequest(spec=spec), idempotency_key=None, user=None).id
        place = Placement(engine="local", shares=(NodeShare(node="local", cpus=1.0, memory_bytes=0),))
        with self.db.write() as tx:
            run = store.load_run(tx, run_id)
            assert run is not None
            attempt_id = store.insert_attempt(tx, run, place, now=self.clock.now())
        folder = self.folder / attempt_id
        for name, content in (logs or {}).items():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        self.clock.advance(1)
        self.note(attempt_id, state=AttemptState.ENDED, log_dirs=[str(folder)])
        if released:
            self.note(attempt_id, released_at=self.clock.now())
        return attempt_id

    def note(self, attempt_id: str, **values: object) -> None:
        with self.db.write() as tx:
            tx.execute(update(attempts).where(attempts.c.id == attempt_id).values(**values))

    def archivist(self, slots: Callable[[], Slots] = lambda: None) -> Archivist:
        return Archivist(self.db, self.bucket, self.clock, slots, monotonic=self.clock.monotonic)

    def log_dirs(self, attempt_id: str) -> list[str]:
        with self.db.read() as tx:
            (found,) = store.load_attempts(tx, attempt_id.rpartition(".")[0])
        return list(found.log_dirs)

    def is_archived(self, attempt_id: str) -> bool:
        with self.db.read() as tx:
            (found,) = store.load_attempts(tx, attempt_id.rpartition(".")[0])
        return found.archived_at is not None

    def content(self, attempt_id: str) -> dict[int, bytes]:
        stored = StoredLogs(self.db, self.bucket)
        files = find_logs({1: self.log_dirs(attempt_id)}, stored=stored)
        return {file.rank: b"".join(file.content.pieces(0)) for file in files}


@pytest.fixture
def stage(database: Database, service: RunService, clock: FakeClock, tmp_path: Path) -> Stage:
    return Stage(database, service, clock, Bucket(tmp_path / "bucket"), tmp_path / "attempts")


def lines(count: int) -> bytes:
    return b"".join(f"{timestamp(1_700_000_000.0 + i)} o line {i}\n".encode() for i in range(count))


def test_logs_move_to_the_blobs_and_read_the_same(stage: Stage) -> None:
    logs = {rank_log(0): lines(200), rank_log(1): lines(3), SUPERVISOR_LOG: b"said\n", "plan.json": b"{}"}
    attempt_id = stage.ended(logs)
    before = stage.content(attempt_id)
    stage.archivist().sweep()
    assert stage.log_dirs(attempt_id) == [f"stored://{attempt_id}/0"]
    shutil.rmtree(stage.folder)
    assert stage.content(attempt_id) == before == {0: lines(200), 1: lines(3)}


def test_those_that_the_engine_still_keeps_wait(stage: Stage) -> None:
    attempt_id = stage.ended({rank_log(0): lines(1)}, released=False)
    archivist = stage.archivist()
    archivist.sweep()
    assert not stage.is_archived(attempt_id)
    stage.note(attempt_id, released_at=stage.clock.now())
    archivist.sweep()
    assert stage.is_archived(attempt_id)


def test_what_nodes_sent_moves_too(stage: Stage) -> None:
    attempt_id = stage.ended(None)
    with stage.db.write() as tx:
        append(tx, LogPlace(attempt_id, 0), rank_log(0), 0, lines(500))
    stage.note(attempt_id, log_dirs=[f"stored://{attempt_id}/0"])
    stage.archivist().sweep()
    assert stage.is_archived(attempt_id)
    assert stage.content(attempt_id) == {0: lines(500)}
    with stage.db.read() as tx:
        assert tx.execute(text("SELECT count(*) FROM log_chunks WHERE data IS NOT NULL")).scalar_one() == 0


@pytest.mark.parametrize("sent", [False, True], ids=["folder", "sent"])
@pytest.mark.parametrize("puts", range(6))
def test_killed_at_any_moment_nothing_is_lost(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, puts: int, sent: bool
) -> None:
    monkeypatch.setattr(archiving, "_MOST_RAW_BYTES", 4_000)
    monkeypatch.setattr("windlass.tracking.logs._READ_BYTES", 1_000)
    monkeypatch.setattr(storedlogs, "_SMALL_BYTES", 500)
    monkeypatch.setattr(storedlogs, "_CHUNK_BYTES", 1_000)
    attempt_id = stage.ended({rank_log(0): lines(400), rank_log(1): lines(200)})
    if sent:
        with stage.db.write() as tx:
            for rank, count in ((0, 400), (1, 200)):
                append(tx, LogPlace(attempt_id, 0), rank_log(rank), 0, lines(count))
        stage.note(attempt_id, log_dirs=[f"stored://{attempt_id}/0"])
    stage.bucket.puts_left = puts
    with pytest.raises(Killed):
        stage.archivist().sweep()
    assert stage.content(attempt_id) == {0: lines(400), 1: lines(200)}
    stage.bucket.puts_left = None
    stage.archivist().sweep()
    assert stage.is_archived(attempt_id)
    shutil.rmtree(stage.folder)
    assert stage.content(attempt_id) == {0: lines(400), 1: lines(200)}


def test_a_folder_that_is_not_here_holds_nobody_up_and_is_tried_again(stage: Stage) -> None:
    elsewhere = stage.ended(None)
    here = stage.ended({rank_log(0): lines(5)})
    archivist = stage.archivist()
    archivist.sweep()
    assert (stage.is_archived(elsewhere), stage.is_archived(here)) == (False, True)
    assert stage.log_dirs(elsewhere) == [str(stage.folder / elsewhere)]
    (stage.folder / elsewhere).mkdir()
    (stage.folder / elsewhere / rank_log(0)).write_bytes(lines(7))
    stage.clock.advance(1_000)
    archivist.sweep()
    assert stage.content(elsewhere) == {0: lines(7)}
    assert stage.is_archived(elsewhere)


def test_a_controller_takes_only_what_is_its_own(stage: Stage) -> None:
    ids = [stage.ended({rank_log(0): lines(1)}) for _ in range(6)]
    slots = {id: slot_of(id.rpartition(".")[0]) for id in ids}
    mine = frozenset({slots[ids[0]]})
    held: list[Slots] = [frozenset()]
    archivist = stage.archivist(lambda: held[0])
    archivist.sweep()
    assert not any(stage.is_archived(id) for id in ids)
    held[0] = mine
    archivist.sweep()
    assert {id for id in ids if stage.is_archived(id)} == {id for id in ids if slots[id] in mine}
    held[0] = None  # it takes over from another: also what was released before its own
    archivist.sweep()
    assert all(stage.is_archived(id) for id in ids)


def test_an_outage_is_told_once_and_made_up_for(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(module, "_LONGEST_PAUSE_S", 0.02)
    attempt_id = stage.ended({rank_log(0): lines(5)})
    tries = threading.Semaphore(0)
    archivist = stage.archivist()
    sweep = archivist.sweep

    def counted() -> None:
        try:
            sweep()
        finally:
            tries.release()

    monkeypatch.setattr(archivist, "sweep", counted)
    stage.bucket.away = True
    with caplog.at_level(logging.INFO, module.__name__):
        archivist.start()
        try:
            for _ in range(4):
                assert tries.acquire(timeout=30)
            assert not stage.is_archived(attempt_id)
            stage.bucket.away = False
            while not stage.is_archived(attempt_id):
                assert tries.acquire(timeout=30)
        finally:
            archivist.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "logs cannot be archived now: the bucket is away; trying again",
        "logs are being archived again",
    ]


def test_those_that_are_done_cost_nothing(stage: Stage) -> None:
    """The index holds only what is still to be moved, and is used."""
    query = (
        "SELECT id FROM attempts WHERE released_at IS NOT NULL AND archived_at IS NULL"
        " AND (released_at, id) > (0.0, '') ORDER BY released_at, id LIMIT 10"
    )
    with stage.db.read() as tx:
        if stage.db.is_sqlite:
            plan = tx.execute(text(f"EXPLAIN QUERY PLAN {query}")).all()
        else:
            tx.execute(text("SET LOCAL enable_seqscan = off"))  # with no rows at all, reading all is as cheap
            plan = tx.execute(text(f"EXPLAIN {query}")).all()
    assert any("ix_attempts_unarchived" in str(row) for row in plan), plan
    assert not any("SORT" in str(row).upper() or "TEMP B-TREE" in str(row) for row in plan), plan
