"""Backups: from one kind of database to the other and back, all or nothing, damage noticed."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, insert, select, text
from typer.testing import CliRunner

from windlass.artifacts.service import ArtifactService
from windlass.blobs.contract import Blobs
from windlass.blobs.local import LocalBlobs
from windlass.blobs.opening import open_blobs
from windlass.cli.commands import build_app
from windlass.core.errors import Conflict, InvalidInput
from windlass.db.database import Database, sqlite_url
from windlass.db.migrate import HEAD, current_revision, migrate, upgrade
from windlass.runs.sealing import Seal
from windlass.runs.service import RunService
from windlass.runs.tables import attempts, environments
from windlass.runs.types import AttemptState
from windlass.server.backup import format as form
from windlass.server.backup import writing
from windlass.server.backup.restoring import Backup, restore
from windlass.server.backup.writing import write_backup
from windlass.tenancy.prices import PriceBook
from windlass.testing.clock import FakeClock
from windlass.testing.postgres import PostgresServer
from windlass.testing.s3 import S3Server
from windlass.tracking.storedlogs import LogPlace, StoredLogs, append
from windlass.wire import runs as wire

SECRET = "hf_abcdefgh"


def rows_of(db: Database) -> dict[str, list[dict[str, Any]]]:
    """Everything that a backup holds, table by table."""
    with db.read() as tx:
        found = MetaData()
        found.reflect(tx)
        return {
            table.name: [dict(row._mapping) for row in tx.execute(select(table).order_by(*table.primary_key))]
            for table in found.sorted_tables
            if table.name not in form.LEFT_OUT
        }


def service_of(db: Database, blobs: Blobs, seal: Seal, clock: FakeClock) -> RunService:
    return RunService(db, blobs, seal, clock, prices=PriceBook(), runs_dir=None, nudge=lambda: None)


def fill(db: Database, blobs: Blobs, seal: Seal, clock: FakeClock, logs: Path) -> str:
    """Runs with metrics, secrets, events, and an ended attempt with a log; the id of the run that has it."""
    service = service_of(db, blobs, seal, clock)
    ids = []
    for number in range(5):
        spec = {
            "command": f"echo {number}",
            "params": {"lr": 3e-4, "text": "ünï", "big": 2**53 + 1},
            "secrets": ["TOKEN"],
        }
        request = wire.SubmitRequest(spec=spec, secrets={"TOKEN": SECRET}, origin=wire.Origin(user="ada", host="h"))
        ids.append(service.submit(request, idempotency_key=f"k{number}", user=None).id)
    points = [
        wire.Point(values={"loss": value}, step=step, at=1.5 + step / 3)
        for step, value in enumerate([0.1, float("nan"), float("inf"), -1e308, 5e-324])
    ]
    service.ingest(ids[0], wire.MetricBatch(source="r", seq=0, points=points))
    service.cancel(ids[1], grace_s=None)
    blobs.put(b"a blob" * 1000)
    logs.mkdir(parents=True)
    (logs / "rank-0.log").write_bytes(b"o 1.0 hello\n" * 50_000)
    (logs / "status.json").write_text("{}")
    with db.write() as tx:
        tx.execute(
            insert(attempts).values(
                id=f"{ids[0]}.1",
                run_id=ids[0],
                number=1,
                state=AttemptState.ENDED,
                engine="local",
                placement={"engine": "local", "shares": []},
                created_at=clock.now(),
                log_dirs=[str(logs)],
                exit={"reason": "completed"},
            )
        )
    return ids[0]


@pytest.fixture
def filled(sqlite: Database, blobs: LocalBlobs, seal: Seal, clock: FakeClock, tmp_path: Path) -> str:
    return fill(sqlite, blobs, seal, clock, tmp_path / "logs" / "node-0")


def saved(db: Database, blobs: Blobs | None, *, secret_key: bytes | None = None) -> io.BytesIO:
    file = io.BytesIO()
    write_backup(file, db, blobs, secret_key=secret_key, now=1_700_000_000.0)
    file.seek(0)
    return file


@pytest.fixture
def new_database(tmp_path: Path, postgres_server: PostgresServer) -> Iterator[Callable[[str], Database]]:
    """An empty database of a kind, without tables."""
    opened: list[tuple[Database, str | None]] = []

    def make(kind: str) -> Database:
        if kind == "sqlite":
            opened.append((Database(sqlite_url(tmp_path / f"new{len(opened)}.db")), None))
        else:
            url = postgres_server.create_database()
            opened.append((Database(url), url))
        return opened[-1][0]

    yield make
    for db, url in opened:
        db.close()
        if url:
            postgres_server.drop_database(url)


def comparable(rows: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Without what restoring changes: where the logs of ended attempts are."""
    left = {name: found for name, found in rows.items() if name not in ("log_files", "log_chunks")}
    return {**left, "attempts": [{**row, "log_dirs": None} for row in rows["attempts"]]}


def test_artifacts_come_along(sqlite: Database, blobs: LocalBlobs, clock: FakeClock, tmp_path: Path) -> None:
    room = blobs.room("artifacts")
    artifacts = ArtifactService(db=sqlite, clock=clock, blobs=room)
    artifacts.put_bytes("0/r/artifacts/x", b"content")
    same = blobs.put(b"content")  # of a snapshot: kept apart
    other, other_blobs = Database(sqlite_url(tmp_path / "other.db")), open_blobs_in(tmp_path / "other")
    restore(Backup(saved(sqlite, blobs)), other, other_blobs)
    assert list(other_blobs.digests()) == list(other_blobs.room("artifacts").digests()) == [same]
    there = ArtifactService(db=other, clock=clock, blobs=other_blobs.room("artifacts"))
    assert there.get_bytes("0/r/artifacts/x") == b"content"
    other.close()


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_a_laptop_moves_to_a_cluster_and_back(
    sqlite: Database,
    blobs: LocalBlobs,
    seal: Seal,
    clock: FakeClock,
    filled: str,
    new_database: Callable[[str], Database],
    tmp_path: Path,
    kind: str,
) -> None:
    before = rows_of(sqlite)
    other, other_blobs = new_database(kind), open_blobs_in(tmp_path / "other")
    restore(Backup(saved(sqlite, blobs)), other, other_blobs)
    there = rows_of(other)
    assert comparable(there) == comparable(before)
    assert sorted(other_blobs.digests()) == sorted(blobs.digests())
    # The log came along, and is read from the database now.
    place = LogPlace(f"{filled}.1", 0)
    (attempt,) = there["attempts"]
    assert attempt["log_dirs"] == [str(place)]
    (log,) = StoredLogs(other, other_blobs).find([place])
    assert b"".join(log.pieces(0)) == b"o 1.0 hello\n" * 50_000
    # It goes on: secrets open, and new events get new numbers.
    with other.read() as tx:
        assert seal.open(tx, filled) == {"TOKEN": SECRET}
    service_of(other, other_blobs, seal, clock).cancel(filled, grace_s=None)
    assert len(rows_of(other)["events"]) == len(before["events"]) + 1
    # And back again.
    again = new_database("sqlite")
    there = rows_of(other)
    restore(Backup(saved(other, other_blobs)), again, open_blobs_in(tmp_path / "again"))
    assert rows_of(again) == there
    with again.read() as tx:
        assert tx.execute(text("SELECT count(*) FROM attempts WHERE usage IS NULL")).scalar_one() == 1


def test_a_log_that_was_archived_in_part_comes_back_whole_and_once(
    sqlite: Database, blobs: LocalBlobs, filled: str, new_database: Callable[[str], Database], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("windlass.server.backup.restoring._LOG_BYTES_AT_ONCE", 1_000)
    place, content = LogPlace(f"{filled}.1", 0), b"o 1.0 hello\n" * 50_000
    with sqlite.write() as tx:
        append(tx, place, "rank-0.log", 0, content[:5_500])
    other, other_blobs = new_database("sqlite"), open_blobs_in(tmp_path / "other")
    restore(Backup(saved(sqlite, blobs)), other, other_blobs)
    (log,) = StoredLogs(other, other_blobs).find([place])
    assert b"".join(log.pieces(0)) == content


def open_blobs_in(folder: Path) -> LocalBlobs:
    return LocalBlobs(folder)


def test_a_database_that_holds_something_is_refused_unless_forced(
    sqlite: Database, blobs: LocalBlobs, filled: str, tmp_path: Path
) -> None:
    backup = saved(sqlite, blobs)
    before = rows_of(sqlite)
    with pytest.raises(Conflict, match=r"is not empty: \w+ has \d+ rows"):
        restore(Backup(backup), sqlite, blobs)
    assert rows_of(sqlite) == before
    with sqlite.write() as tx:
        tx.execute(attempts.delete())
    restore(Backup(backup), sqlite, blobs, force=True)
    assert comparable(rows_of(sqlite)) == comparable(before)


def test_an_empty_database_with_tables_is_fine(
    sqlite: Database, blobs: LocalBlobs, filled: str, tmp_path: Path
) -> None:
    other = Database(sqlite_url(tmp_path / "other.db"))
    migrate(other)
    restore(Backup(saved(sqlite, blobs)), other, blobs)
    assert comparable(rows_of(other)) == comparable(rows_of(sqlite))
    other.close()


def test_blobs_can_be_left_out(sqlite: Database, blobs: LocalBlobs, filled: str, tmp_path: Path) -> None:
    backup = Backup(saved(sqlite, None))
    assert (backup.header.blobs, backup.blobs()) == (False, [])


def test_the_key_is_in_it_only_if_asked_for(sqlite: Database, blobs: LocalBlobs, filled: str) -> None:
    without, with_key = saved(sqlite, blobs), saved(sqlite, blobs, secret_key=b"the key")
    assert Backup(without).secret_key() is None
    assert Backup(with_key).secret_key() == b"the key"
    assert SECRET.encode() not in with_key.getvalue()


def test_what_comes_in_while_it_is_made_is_in_it_whole_or_not_at_all(
    sqlite: Database, blobs: LocalBlobs, seal: Seal, clock: FakeClock, filled: str, tmp_path: Path
) -> None:
    service = service_of(sqlite, blobs, seal, clock)
    came = []

    def busy(_what: str, _done: int, _total: int) -> None:
        if not came:
            request = wire.SubmitRequest(spec={"command": "late"}, origin=wire.Origin(user="ada", host="h"))
            came.append(service.submit(request, idempotency_key=None, user=None).id)

    before = rows_of(sqlite)
    file = io.BytesIO()
    write_backup(file, sqlite, blobs, secret_key=None, now=0.0, progress=busy)
    assert came
    other = Database(sqlite_url(tmp_path / "other.db"))
    restore(Backup(file), other, blobs)
    assert comparable(rows_of(other)) == comparable(before)
    other.close()


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
@pytest.mark.parametrize("with_tables", [False, True])
def test_a_backup_of_an_older_version_is_brought_up(
    new_database: Callable[[str], Database],
    blobs: LocalBlobs,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    with_tables: bool,
) -> None:
    old, new = new_database("sqlite"), new_database(kind)
    with old.write() as tx:
        upgrade(tx, "0001")
        tx.execute(insert(environments).values(digest="d", data={"python": "3.8", "packages": ["ü"]}))
    with monkeypatch.context() as patch:
        patch.setattr(writing, "HEAD", "0001")
        backup = Backup(saved(old, blobs))
    if with_tables:
        migrate(new)
    restore(backup, new, blobs)
    assert current_revision(new) == HEAD
    assert rows_of(new)["environments"] == [{"digest": "d", "data": {"python": "3.8", "packages": ["ü"]}}]


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_what_fails_in_the_middle_leaves_nothing(
    sqlite: Database, blobs: LocalBlobs, filled: str, new_database: Callable[[str], Database], kind: str
) -> None:
    def change(name: str, data: bytes) -> bytes:
        told = json.loads(data) if name == form.CHECKSUMS else None
        return json.dumps({**told, "rows": {**told["rows"], "events": 3}}).encode() if told else data

    other = new_database(kind)
    with pytest.raises(InvalidInput, match=r"events has \d+ rows, not 3"):
        restore(Backup(changed(saved(sqlite, blobs), change)), other, blobs)
    assert rows_of(other) == {}
    restore(Backup(saved(sqlite, blobs)), other, blobs)
    assert comparable(rows_of(other)) == comparable(rows_of(sqlite))


# ---- damage --------------------------------------------------------------------------------------------------------


def changed(backup: io.BytesIO, change: Callable[[str, bytes], bytes | None]) -> io.BytesIO:
    """The same tar with some members changed, or left out."""
    result = io.BytesIO()
    with tarfile.open(fileobj=backup) as old, tarfile.open(fileobj=result, mode="w") as new:
        for member in old:
            file = old.extractfile(member)
            assert file is not None
            data = change(member.name, file.read())
            if data is not None:
                member.size = len(data)
                new.addfile(member, io.BytesIO(data))
    result.seek(0)
    return result


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda name, data: flipped(data) if name == "tables/runs.jsonl.gz" else data, "sha256 of tables/runs"),
        (lambda name, data: flipped(data) if name.startswith("logs/") else data, "sha256 of logs/"),
        (lambda name, data: None if name == "tables/events.jsonl.gz" else data, "tables/events.jsonl.gz is not in it"),
        (lambda name, data: flipped(data) if name.startswith("blobs/") else data, "has another content"),
        (lambda name, data: None if name.startswith("blobs/") else data, r"damaged: 0 of \d+ blobs"),
        (lambda name, data: None if name == form.CHECKSUMS else data, "the backup is cut off"),
        (lambda name, data: None if name == form.HEADER else data, "this is not a backup"),
    ],
)
def test_damage_is_noticed_and_nothing_changed(
    sqlite: Database,
    blobs: LocalBlobs,
    filled: str,
    tmp_path: Path,
    change: Callable[[str, bytes], bytes | None],
    problem: str,
) -> None:
    other = Database(sqlite_url(tmp_path / "other.db"))
    migrate(other)
    with pytest.raises(InvalidInput, match=problem):
        restore(Backup(changed(saved(sqlite, blobs), change)), other, LocalBlobs(tmp_path / "other"))
    assert all(rows == [] for rows in rows_of(other).values())
    other.close()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.99])
def test_a_backup_that_is_cut_off_is_refused(sqlite: Database, blobs: LocalBlobs, filled: str, share: float) -> None:
    whole = saved(sqlite, blobs).getvalue()
    with pytest.raises(InvalidInput, match=r"cut off|not a backup"):
        Backup(io.BytesIO(whole[: int(len(whole.rstrip(b"\0")) * share)]))


@pytest.mark.parametrize(("field", "value", "problem"), [("format", 2, "has format 2"), ("schema", "9999", "9999")])
def test_a_backup_of_a_later_version_is_refused(
    sqlite: Database, blobs: LocalBlobs, filled: str, tmp_path: Path, field: str, value: object, problem: str
) -> None:
    def change(name: str, data: bytes) -> bytes:
        return json.dumps({**json.loads(data), field: value}).encode() if name == form.HEADER else data

    other = Database(sqlite_url(tmp_path / "other.db"))
    with pytest.raises((Conflict, InvalidInput), match=problem):
        restore(Backup(changed(saved(sqlite, blobs), change)), other, blobs)
    assert rows_of(other) == {}
    other.close()


# ---- the commands --------------------------------------------------------------------------------------------------


def invoke(*words: object) -> str:
    result = CliRunner().invoke(build_app(), [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def home(sqlite: Database, filled: str, tmp_path: Path) -> Path:
    """A server's folder with what `filled` holds."""
    folder = tmp_path / "home"
    folder.mkdir()
    with sqlite.write() as tx:
        tx.exec_driver_sql("SELECT 1")
    with sqlite.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(tmp_path / "windlass.db", folder / "windlass.db")
    shutil.copytree(tmp_path / "blobs", folder / "blobs")
    shutil.copy(tmp_path / "secret.key", folder / "secret.key")
    return folder


def test_the_commands_work_on_a_file(home: Path, sqlite: Database, tmp_path: Path) -> None:
    file, other = tmp_path / "all.tar", tmp_path / "other"
    assert "5 runs" in invoke("backup", file, "--home", home, "--with-secrets")
    assert file.stat().st_mode & 0o077 == 0
    assert "5 runs" in invoke("restore", file, "--home", other)
    assert (other / "secret.key").read_bytes() == (home / "secret.key").read_bytes()
    restored = Database(sqlite_url(other / "windlass.db"))
    assert comparable(rows_of(restored)) == comparable(rows_of(sqlite))
    restored.close()
    with pytest.raises(Conflict, match="is there already"):
        invoke("backup", file, "--home", home)
    with pytest.raises(Conflict, match="is not empty"):
        invoke("restore", file, "--home", other)


def test_another_key_is_not_replaced(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "secret.key").write_bytes(b"another")
    invoke("backup", tmp_path / "all.tar", "--home", home, "--with-secrets")
    with pytest.raises(Conflict, match="holds another key than the backup"):
        invoke("restore", tmp_path / "all.tar", "--home", other)
    assert not (other / "windlass.db").exists()


def test_the_commands_work_on_a_bucket(
    home: Path, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = s3_server.section()
    for name, value in s3_server.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WINDLASS_BLOBS_ENDPOINT", s3_server.endpoint)
    place = f"{section.url}/all.tar"
    invoke("backup", place, "--home", home)
    # The new server keeps its blobs in the bucket too.
    monkeypatch.setenv("WINDLASS_BLOBS_URL", f"{section.url}/main")
    assert "5 runs" in invoke("restore", place, "--home", tmp_path / "other")
    blobs = open_blobs(
        section.model_copy(update={"url": f"{section.url}/main"}), home=tmp_path, environ=s3_server.environ
    )
    assert sorted(blobs.digests()) == sorted(LocalBlobs(home / "blobs").digests())
