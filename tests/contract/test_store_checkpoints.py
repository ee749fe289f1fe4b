"""The catalogue of checkpoints over each kind of database: what jobs tell arrives once; people look and remove."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windlass.agent.layout import metrics_spool
from windlass.checkpoints.service import CheckpointService
from windlass.controller.collecting import commit_spooled, read_spools
from windlass.core.errors import Conflict, NotFound
from windlass.core.manifest import MANIFEST, Manifest, PartFile, SaveReason, folder_name, render_manifest
from windlass.db.database import Database
from windlass.job.session import Session
from windlass.runs.service import RunService
from windlass.runs.types import RunState
from windlass.testing.clock import FakeClock
from windlass.tracking.store import load_positions
from windlass.wire import runs as wire

Tell = Callable[..., None]


@pytest.fixture
def catalogue(database: Database, service: RunService, clock: FakeClock) -> CheckpointService:
    return CheckpointService(database, service, clock)


def submit(service: RunService, **spec: Any) -> str:
    request = wire.SubmitRequest(spec={"command": "true", "code": None, **spec})
    return service.submit(request, idempotency_key=None, user=None).id


@pytest.fixture
def run_id(service: RunService) -> str:
    return submit(service)


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "node-0"
    folder.mkdir()
    return folder


def job(run_id: str, spool: Path) -> Session:
    return Session({"WINDLASS_RUN_ID": run_id, "WINDLASS_NODE_DIR": str(spool), "RANK": "0"})


def save(root: Path, run_id: str, step: int, *, at: float = 0.0, **metrics: float) -> tuple[Path, Manifest]:
    folder = root / folder_name(step)
    folder.mkdir(parents=True, exist_ok=True)
    data = f"weights of step {step} at {at}".encode()
    (folder / "part").write_bytes(data)
    manifest = Manifest(
        run_id=run_id,
        attempt=1,
        step=step,
        created_at=1_000.0 + step + at,
        reason=SaveReason.INTERVAL,
        world_size=2,
        plan="data=2",
        files=(PartFile(name="part", size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest()),),
        metrics=metrics,
    )
    (folder / MANIFEST).write_text(render_manifest(manifest))
    return folder, manifest


def collect(db: Database, run_id: str, spool: Path, attempt: int = 1) -> None:
    with db.read() as tx:
        positions = load_positions(tx, [run_id])
    spooled = list(read_spools(run_id, f"{run_id}.{attempt}", [str(spool)], positions, drain=True))
    with db.write() as tx:
        commit_spooled(tx, spooled, now=0.0)


def steps(catalogue: CheckpointService, run_id: str, *, everything: bool = False) -> list[int]:
    return [found.step for found in catalogue.list(run_id, everything=everything, limit=100).checkpoints]


def stories(service: RunService, run_id: str) -> list[str]:
    return [event.message for event in service.events(run_id, after=0).events if event.kind == "checkpoint"]


def test_what_a_job_saves_is_in_the_catalogue_once(
    catalogue: CheckpointService, service: RunService, database: Database, run_id: str, spool: Path, tmp_path: Path
) -> None:
    session = job(run_id, spool)
    for step, loss in ((10, 2.0), (20, 1.0), (30, 1.5)):
        session.checkpoint(*save(tmp_path / "c", run_id, step, loss=loss))
    collect(database, run_id, spool, attempt=4)
    collect(database, run_id, spool, attempt=4)
    shown = catalogue.list(run_id, everything=False, limit=100)
    assert [(c.step, c.attempt, c.is_newest, c.is_best) for c in shown.checkpoints] == [
        (30, 4, True, False),
        (20, 4, False, True),
        (10, 4, False, False),
    ]
    newest = shown.checkpoints[0]
    assert (newest.plan, newest.world_size, newest.format, newest.reason) == ("data=2", 2, "dcp", "interval")
    assert (newest.metrics, newest.state, newest.location) == (
        {"loss": 1.5},
        "available",
        f"{tmp_path}/c/step-0000000030",
    )
    assert len(stories(service, run_id)) == 3


def test_a_spool_is_not_counted_by_two(database: Database, run_id: str, spool: Path, tmp_path: Path) -> None:
    job(run_id, spool).checkpoint(*save(tmp_path / "c", run_id, 1))
    spooled = list(read_spools(run_id, f"{run_id}.1", [str(spool)], {}))
    with database.write() as tx:
        commit_spooled(tx, spooled, now=0.0)
    with pytest.raises(Conflict), database.write() as tx:
        commit_spooled(tx, spooled, now=0.0)


def test_a_later_attempt_tells_of_what_it_finds_and_nothing_is_there_twice(
    catalogue: CheckpointService, service: RunService, database: Database, run_id: str, spool: Path, tmp_path: Path
) -> None:
    first, second = save(tmp_path / "c", run_id, 1), save(tmp_path / "c", run_id, 2)
    session = job(run_id, spool)
    session.checkpoint(*first)
    collect(database, run_id, spool)
    later = tmp_path / "later"
    later.mkdir()
    session = job(run_id, later)
    session.checkpoint(*first)
    session.checkpoint(*second)  # saved by the first attempt, which died before it could tell
    session.checkpoint(*save(tmp_path / "c", run_id, 2, at=50.0))
    session.checkpoint_removed(first[0])
    collect(database, run_id, later, attempt=2)
    assert steps(catalogue, run_id) == [2]
    everything = catalogue.list(run_id, everything=True, limit=100).checkpoints
    assert [(c.step, c.attempt, c.state, c.detail) for c in everything] == [
        (2, 2, "available", None),
        (2, 2, "deleted", "replaced by attempt 2"),
        (1, 1, "deleted", "removed by the run"),
    ]


def test_what_a_later_attempt_does_not_find_is_gone(
    catalogue: CheckpointService, database: Database, run_id: str, spool: Path, tmp_path: Path
) -> None:
    session = job(run_id, spool)
    for step in (1, 2, 3):
        session.checkpoint(*save(tmp_path / "c", run_id, step))
    session.checkpoints_there(tmp_path / "c", [tmp_path / "c" / folder_name(2)])
    session.checkpoint(*save(tmp_path / "c", run_id, 4))
    collect(database, run_id, spool)
    assert steps(catalogue, run_id) == [4, 2]
    session.checkpoints_there(tmp_path / "c", [])
    collect(database, run_id, spool)
    assert steps(catalogue, run_id) == []


def test_the_best_is_by_the_spec(
    catalogue: CheckpointService, service: RunService, database: Database, spool: Path, tmp_path: Path
) -> None:
    run_id = submit(service, checkpoint={"best": "acc", "best_is": "highest"})
    session = job(run_id, spool)
    for step, acc in ((1, 0.5), (2, 0.9), (3, 0.7)):
        session.checkpoint(*save(tmp_path / "c", run_id, step, acc=acc, loss=float(step)))
    collect(database, run_id, spool)
    shown = catalogue.list(run_id, everything=False, limit=100)
    assert (shown.best_by, [c.step for c in shown.checkpoints if c.is_best]) == ("acc", [2])
    assert catalogue.show(run_id, "best").checkpoint.step == 2


def test_verifying_keeps_what_it_finds(
    catalogue: CheckpointService, service: RunService, database: Database, run_id: str, spool: Path, tmp_path: Path,
    clock: FakeClock,
) -> None:  # fmt: skip
    session = job(run_id, spool)
    folder, manifest = save(tmp_path / "c", run_id, 1)
    session.checkpoint(folder, manifest)
    session.checkpoint(*save(tmp_path / "c", run_id, 2))
    collect(database, run_id, spool)
    good = catalogue.verify(run_id, "1")
    assert (good.finding, good.checkpoint.state, good.checkpoint.verified_at) == ("good", "available", clock.now())
    data = (folder / "part").read_bytes()
    (folder / "part").write_bytes(data[:-1] + b"x")
    bad = catalogue.verify(run_id, "1")
    assert (bad.finding, bad.checkpoint.state, bad.problems) == (
        "corrupt",
        "corrupt",
        ["part has changed since it was saved: its sha256 is another"],
    )
    assert steps(catalogue, run_id) == [2]
    (folder / "part").write_bytes(data)
    assert catalogue.verify(run_id, "1").checkpoint.state == "available"
    (tmp_path / "c" / "step-0000000002").rename(tmp_path / "moved")
    assert catalogue.verify(run_id, "2").checkpoint.state == "deleted"
    assert stories(service, run_id)[2:] == [
        "the checkpoint of step 1 is corrupt: part has changed since it was saved: its sha256 is another",
        "the checkpoint of step 1 is as it was saved after all",
        f"the checkpoint of step 2 is deleted: {tmp_path}/c/step-0000000002 is not there any more",
    ]


def test_what_the_server_cannot_see_stays_as_it_is(
    catalogue: CheckpointService, database: Database, run_id: str, spool: Path, tmp_path: Path
) -> None:
    _, manifest = save(tmp_path / "c", run_id, 1)
    session = job(run_id, spool)
    session.checkpoint("/nowhere/on/this/machine/step-1", manifest)
    session.checkpoint("s3://bucket/step-2", Manifest(**{**_fields(manifest), "step": 2}), tier="objects")
    collect(database, run_id, spool)
    for which in ("1", "2"):
        unseen = catalogue.verify(run_id, which)
        assert (unseen.finding, unseen.checkpoint.state) == ("unseen", "available")
        assert [file.name for file in catalogue.show(run_id, which).files or ()] == ["part"]  # as the job has told
    with pytest.raises(Conflict, match="cannot be seen from the server's machine") as refused:
        catalogue.remove(run_id, "1", forget=False)
    assert refused.value.hint == "--forget only takes it off the list"
    assert catalogue.remove(run_id, "1", forget=True).detail == "taken off the list"
    assert steps(catalogue, run_id) == [2]


def test_what_a_run_would_go_on_from_stays(
    catalogue: CheckpointService, service: RunService, database: Database, run_id: str, spool: Path, tmp_path: Path
) -> None:
    session = job(run_id, spool)
    for step in (1, 2):
        session.checkpoint(*save(tmp_path / "c", run_id, step))
    collect(database, run_id, spool)
    with pytest.raises(Conflict, match=r"step 2 is the newest good checkpoint of run r-.*, which is not over"):
        catalogue.remove(run_id, "newest", forget=False)
    with pytest.raises(Conflict, match="which is not over"):
        catalogue.remove(run_id, "2", forget=True)
    assert catalogue.remove(run_id, "1", forget=False).state == "deleted"
    assert catalogue.remove(run_id, "1", forget=False).detail == "removed by hand"
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["step-0000000002"]
    assert service.cancel(run_id, grace_s=None).state == RunState.CANCELLED
    assert catalogue.remove(run_id, "2", forget=False).state == "deleted"
    assert list((tmp_path / "c").iterdir()) == []
    assert stories(service, run_id)[2:] == [
        "the checkpoint of step 1 was removed by hand",
        "the checkpoint of step 2 was removed by hand",
    ]


def test_an_older_one_stays_while_the_newest_is_damaged(
    catalogue: CheckpointService, database: Database, run_id: str, spool: Path, tmp_path: Path
) -> None:
    session = job(run_id, spool)
    for step in (1, 2):
        session.checkpoint(*save(tmp_path / "c", run_id, step))
    collect(database, run_id, spool)
    (tmp_path / "c" / folder_name(2) / "part").unlink()
    with pytest.raises(Conflict, match=r"step 2, which run r-.* would go on from, is corrupt: part is missing"):
        catalogue.remove(run_id, "1", forget=False)
    assert catalogue.verify(run_id, "2").finding == "corrupt"
    with pytest.raises(Conflict, match="step 1 is the newest good checkpoint"):
        catalogue.remove(run_id, "1", forget=False)
    assert catalogue.remove(run_id, "2", forget=False).state == "deleted"


def test_a_folder_that_is_no_checkpoint_of_the_run_is_left_alone(
    catalogue: CheckpointService, service: RunService, database: Database, run_id: str, spool: Path, tmp_path: Path
) -> None:
    """Jobs may tell anything."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("x")
    _, manifest = save(tmp_path / "c", run_id, 1)
    job(run_id, spool).checkpoint(precious, manifest)
    collect(database, run_id, spool)
    service.cancel(run_id, grace_s=None)
    with pytest.raises(Conflict, match=r"nothing was removed: .*precious has no manifest.json"):
        catalogue.remove(run_id, "1", forget=False)
    assert (precious / "thesis.tex").exists()


def test_a_job_that_finds_one_corrupt_says_so(
    catalogue: CheckpointService, service: RunService, database: Database, run_id: str, spool: Path, tmp_path: Path
) -> None:
    session = job(run_id, spool)
    folder, manifest = save(tmp_path / "c", run_id, 1)
    session.checkpoint(folder, manifest)
    session.checkpoint_corrupt(folder, "a bit is wrong")
    collect(database, run_id, spool)
    assert steps(catalogue, run_id) == []
    [found] = catalogue.list(run_id, everything=True, limit=100).checkpoints
    assert (found.state, found.detail, found.is_newest) == ("corrupt", "a bit is wrong", False)
    with pytest.raises(NotFound, match="no good checkpoint"):
        catalogue.show(run_id, "newest")


def test_runs_are_kept_apart(
    catalogue: CheckpointService, service: RunService, database: Database, run_id: str, spool: Path, tmp_path: Path
) -> None:
    """Two runs that save in one folder, as scripts outside of our folders may."""
    other = submit(service)
    _, manifest = save(tmp_path / "c", run_id, 1)
    job(run_id, spool).checkpoint(tmp_path / "c", manifest)
    collect(database, run_id, spool)
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    job(other, elsewhere).checkpoint_removed(tmp_path / "c")
    collect(database, other, elsewhere)
    assert (steps(catalogue, run_id), steps(catalogue, other)) == ([1], [])


def test_lines_that_are_no_notes_cost_nothing(
    catalogue: CheckpointService, database: Database, run_id: str, spool: Path, tmp_path: Path
) -> None:
    (spool / metrics_spool(0)).write_text(json.dumps({"t": 1, "s": 1, "c": {"folder": 3}}) + "\n")
    job(run_id, spool).checkpoint(*save(tmp_path / "c", run_id, 1))
    collect(database, run_id, spool)
    assert steps(catalogue, run_id) == [1]


def _fields(manifest: Manifest) -> dict[str, Any]:
    return {name: getattr(manifest, name) for name in Manifest.__slots__}


def test_what_a_job_tells_of_files_and_epoch_is_known_without_the_folder(
    catalogue: CheckpointService, database: Database, run_id: str, spool: Path, tmp_path: Path
) -> None:
    _, manifest = save(tmp_path / "c", run_id, 1, epoch=2.75)
    session = job(run_id, spool)
    session.checkpoint("/nowhere/on/this/machine/step-1", manifest)
    collect(database, run_id, spool)
    shown = catalogue.show(run_id, "1")
    assert shown.checkpoint.epoch == 2
    assert shown.files is not None
    assert [(file.name, file.size_bytes, file.sha256) for file in shown.files] == [
        (file.name, file.size_bytes, file.sha256) for file in manifest.files
    ]
    session.checkpoint_removed("/nowhere/on/this/machine/step-1")
    collect(database, run_id, spool)
    assert catalogue.show(run_id, "1").files is None  # nobody wants that of what is gone
    session.checkpoint("/nowhere/on/this/machine/step-1", manifest)  # brought back
    collect(database, run_id, spool)
    again = job(run_id, spool.with_name("node-1"))
    spool.with_name("node-1").mkdir()
    again.checkpoint("/nowhere/on/this/machine/step-1", manifest)
    collect(database, run_id, spool.with_name("node-1"), attempt=2)
    assert (catalogue.show(run_id, "1").checkpoint.state, len(catalogue.show(run_id, "1").files or ())) == (
        "available",
        1,
    )


def test_notes_without_files_are_read_and_the_folder_is_looked_into(
    catalogue: CheckpointService, database: Database, run_id: str, spool: Path, tmp_path: Path
) -> None:
    """As jobs of an older version write them, and those with very many files."""
    job(run_id, spool).checkpoint(*save(tmp_path / "c", run_id, 1))
    path = spool / metrics_spool(0)
    note = json.loads(path.read_text())
    assert note["c"].pop("parts")
    path.write_text(json.dumps(note) + "\n")
    collect(database, run_id, spool)
    assert [file.name for file in catalogue.show(run_id, "1").files or ()] == ["part"]
    (tmp_path / "c").rename(tmp_path / "away")
    assert catalogue.show(run_id, "1").files is None
