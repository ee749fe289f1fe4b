"""What a run leaves becomes its artifacts once, whoever dies meanwhile, and what does not is told."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from windlass.artifacts.service import ArtifactService
from windlass.blobs.contract import Blobs, Intake
from windlass.blobs.local import LocalBlobs
from windlass.controller.commit import commit_end
from windlass.controller.decide import EndAttempt, Succeed
from windlass.controller.outputs import OutputKeeper
from windlass.core.errors import Unavailable
from windlass.core.exits import Exit, ExitReason
from windlass.core.resources import NodeShare, Placement
from windlass.db.database import Database
from windlass.runs import aftermath, store
from windlass.runs.service import RunService
from windlass.runs.types import EventKind
from windlass.tenancy.prices import PriceBook
from windlass.testing.clock import FakeClock
from windlass.wire import runs as wire

PLACEMENT = Placement(engine="fake", shares=(NodeShare(node="n", cpus=1, memory_bytes=0, gpu_indices=()),))


@pytest.fixture
def artifacts(database: Database, clock: FakeClock, tmp_path: Path) -> ArtifactService:
    return ArtifactService(db=database, clock=clock, blobs=LocalBlobs(tmp_path / "blobs"))


@pytest.fixture
def ended(service: RunService, database: Database, clock: FakeClock, tmp_path: Path) -> str:
    """A run that has succeeded and left two files."""
    spec = {"command": "true", "code": None}
    run_id = service.submit(wire.SubmitRequest(spec=spec), idempotency_key=None, user=None).id
    folder = tmp_path / run_id
    (folder / "model" / "net").mkdir(parents=True)
    (folder / "model" / "small").write_bytes(b"12")
    (folder / "model" / "net" / "large").write_bytes(b"1234567")
    decision = EndAttempt(exit=Exit(reason=ExitReason.COMPLETED), started_at=1.0, ended_at=2.0, verdict=Succeed())
    with database.write() as tx:
        run = store.load_run(tx, run_id)
        assert run is not None
        store.insert_attempt(tx, run, PLACEMENT, now=1.0)
        store.advance(tx, run, EventKind.PLACED, now=1.0, message="", attempt_count=1)
    with database.write() as tx:
        run = store.load_run(tx, run_id)
        assert run is not None
        [attempt] = store.load_attempts(tx, run_id)
        places = [str(folder / "attempts" / "1" / "node-0")]
        commit_end(tx, run, attempt, decision, PriceBook(), now=2.0, log_dirs=places)
    return run_id


@pytest.fixture
def keeper(database: Database, clock: FakeClock, artifacts: ArtifactService) -> Callable[[int | None], OutputKeeper]:
    return lambda limit: OutputKeeper(database, artifacts, clock, lambda: None, limit_bytes=limit)


def kept(artifacts: ArtifactService, run_id: str) -> dict[str, int | None]:
    found = artifacts.files_below("")
    return {entry.path.partition("/artifacts/")[2]: entry.size_bytes for entry in found if run_id in entry.path}


def alerts(service: RunService, run_id: str) -> list[str]:
    return [event.message for event in service.events(run_id, after=0).events if event.kind == "alert"]


def test_all_of_it_is_kept(
    keeper: Callable[[int | None], OutputKeeper], artifacts: ArtifactService, service: RunService, ended: str
) -> None:
    keeper(None).sweep()
    assert kept(artifacts, ended) == {"net/large": 7, "small": 2}
    assert artifacts.get_bytes(next(e.path for e in artifacts.files_below("") if e.name == "small")) == b"12"
    assert alerts(service, ended) == []


def test_what_is_too_large_stays_and_is_told_once(
    keeper: Callable[[int | None], OutputKeeper], artifacts: ArtifactService, service: RunService, ended: str
) -> None:
    for _ in range(2):
        keeper(5).sweep()
    assert kept(artifacts, ended) == {"small": 2}
    [told] = alerts(service, ended)
    assert "1 of its output files (7 B) are beyond artifacts.limit (5 B), such as net/large" in told


def test_names_that_are_no_text(
    keeper: Callable[[int | None], OutputKeeper],
    artifacts: ArtifactService,
    service: RunService,
    ended: str,
    tmp_path: Path,
) -> None:
    (tmp_path / ended / "model" / os.fsdecode(b"a\xff")).write_bytes(b"1")
    keeper(None).sweep()
    assert kept(artifacts, ended) == {"net/large": 7, "small": 2}
    [told] = alerts(service, ended)
    assert "a\ufffd: its name is no text" in told


def test_nothing_is_kept_where_nothing_is_wanted(
    keeper: Callable[[int | None], OutputKeeper], artifacts: ArtifactService, service: RunService, ended: str
) -> None:
    keeper(0).sweep()
    assert kept(artifacts, ended) == {}
    assert alerts(service, ended) == []


class Failing(LocalBlobs):
    """Away once it has taken one file."""

    taken = 0

    def intake(self) -> Intake:
        self.taken += 1
        if self.taken == 2:
            raise Unavailable("the blobs are away")
        return super().intake()


def test_it_goes_on_where_it_broke_off(
    database: Database, clock: FakeClock, tmp_path: Path, ended: str, service: RunService
) -> None:
    blobs: Blobs = Failing(tmp_path / "blobs")
    artifacts = ArtifactService(db=database, clock=clock, blobs=blobs)
    keeper = OutputKeeper(database, artifacts, clock, lambda: None, limit_bytes=None)
    with pytest.raises(Unavailable):
        keeper.sweep()
    assert kept(artifacts, ended) == {"small": 2}
    clock.advance(10 * 365 * 86_400.0)  # beyond the times of the files, whatever the fake clock began with
    keeper.sweep()
    assert kept(artifacts, ended) == {"net/large": 7, "small": 2}
    with database.read() as tx:
        assert aftermath.load_outputs(tx) == []
