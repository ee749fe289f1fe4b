"""Making a backup. The database is read in one transaction that sees one moment, while servers go on working."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from sqlalchemy import Connection, MetaData, Table, func, select

import windlass
from windlass.agent import layout
from windlass.blobs.contract import Blobs
from windlass.core.errors import Conflict, NotFound
from windlass.db.database import Database
from windlass.db.migrate import HEAD, current_revision
from windlass.runs.tables import attempts
from windlass.runs.types import AttemptState
from windlass.server.backup import format as form

Progress = Callable[[str, int, int], None]  # of what, how many are done, how many there are
_ROWS_AT_ONCE = 1_000


def write_backup(
    target: IO[bytes],
    db: Database,
    blobs: Blobs | None,
    *,
    secret_key: bytes | None,
    now: float,
    progress: Progress = lambda _what, _done, _total: None,
) -> form.Checksums:
    """Into `target`, from its beginning. Without `blobs`, code and whatever else is in them is left out."""
    schema = current_revision(db)
    if schema != HEAD:
        raise Conflict(
            f"the database has schema {schema}; this version knows {HEAD}",
            hint="start a server of this version once, or use the version that the servers have",
        )
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as tar:
        writer = _Writer(tar, now)
        header = form.Header(
            windlass=windlass.__version__,
            schema=schema,
            created_at=now,
            blobs=blobs is not None,
            secrets=secret_key is not None,
        )
        writer.add(form.HEADER, header.to_bytes())
        with _one_moment(db) as tx:
            rows = _write_tables(tx, writer, progress)
            folders = _log_folders(tx)
        _write_logs(folders, writer, progress)
        # After the database: a blob is there before the first row that needs it.
        count = _write_blobs(blobs, writer, progress) if blobs is not None else 0
        if secret_key is not None:
            writer.add(form.SECRET_KEY, secret_key)
        checksums = form.Checksums(members=dict(writer.sums), rows=rows, blobs=count)
        writer.add(form.CHECKSUMS, checksums.to_bytes())
    return checksums


class _Writer:
    def __init__(self, tar: tarfile.TarFile, now: float) -> None:
        self._tar = tar
        self._now = now
        self.sums: dict[str, str] = {}

    def add(self, name: str, data: bytes) -> None:
        self.sums[name] = hashlib.sha256(data).hexdigest()
        self._put(name, io.BytesIO(data), len(data))

    def add_file(self, name: str, file: IO[bytes], *, sum_up: bool = True) -> None:
        """All of `file`, whose end is where it stands."""
        size = file.tell()
        file.seek(0)
        if sum_up:
            self.sums[name] = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
            file.seek(0)
        self._put(name, file, size)

    def _put(self, name: str, file: IO[bytes], size: int) -> None:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mtime, entry.mode = size, int(self._now), 0o600
        self._tar.addfile(entry, file)


@contextlib.contextmanager
def _one_moment(db: Database) -> Iterator[Connection]:
    if db.is_sqlite:
        with db.read() as tx:  # a read transaction sees one moment in WAL mode
            yield tx
        return
    with db.engine.connect() as connection:
        connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        with connection.begin():
            yield connection


def _write_tables(tx: Connection, writer: _Writer, progress: Progress) -> dict[str, int]:
    """As the database has them: a table that a later version adds is not forgotten."""
    found = MetaData()
    found.reflect(tx)
    tables = [table for table in found.sorted_tables if table.name not in form.LEFT_OUT]
    total = sum(tx.execute(select(func.count()).select_from(table)).scalar_one() for table in tables)
    progress("rows", 0, total)
    done, rows = 0, {}
    for table in tables:
        with tempfile.TemporaryFile() as file:
            rows[table.name] = 0
            with _packed(file) as packed:
                for line in _lines(tx, table):
                    packed.write(line)
                    rows[table.name] += 1
                    done += 1
                    if done % _ROWS_AT_ONCE == 0:
                        progress("rows", done, total)
            rows[table.name] -= 1  # the line with the columns
            done -= 1
            writer.add_file(f"{form.TABLES}{table.name}.jsonl.gz", file)
    progress("rows", done, total)
    return rows


def _packed(file: IO[bytes]) -> gzip.GzipFile:
    return gzip.GzipFile(fileobj=file, mode="wb", compresslevel=4, mtime=0)


def _lines(tx: Connection, table: Table) -> Iterator[bytes]:
    yield form.columns_line(table)
    columns = list(table.columns)
    query = select(table).order_by(*table.primary_key.columns).execution_options(yield_per=_ROWS_AT_ONCE)
    for row in tx.execute(query):
        yield form.encode_row(row, columns)


def _log_folders(tx: Connection) -> list[tuple[str, int, Path]]:
    """Of ended attempts: attempt, node rank, folder. Those that go on keep theirs, and it goes on growing."""
    rows = tx.execute(select(attempts.c.id, attempts.c.log_dirs).where(attempts.c.state == AttemptState.ENDED))
    return [
        (row.id, rank, Path(place))
        for row in rows
        for rank, place in enumerate(row.log_dirs)
        if place.startswith("/") and os.path.isdir(place)
    ]


def _write_logs(folders: list[tuple[str, int, Path]], writer: _Writer, progress: Progress) -> None:
    for done, (attempt_id, rank, folder) in enumerate(folders, 1):
        for name in sorted(os.listdir(folder)):
            if layout.rank_of_log(name) is None and name not in layout.NODE_LOGS:
                continue
            with tempfile.TemporaryFile() as file, (folder / name).open("rb") as log:
                with _packed(file) as packed:
                    shutil.copyfileobj(log, packed, 1 << 20)
                writer.add_file(f"{form.LOGS}{attempt_id}/{rank}/{name}.gz", file)
        progress("logs", done, len(folders))


def _write_blobs(blobs: Blobs, writer: _Writer, progress: Progress) -> int:
    rooms = {"": blobs, form.ARTIFACTS: blobs.room(form.ARTIFACTS.strip("/"))}
    found = [(name, digest) for name, room in rooms.items() for digest in sorted(room.digests())]
    count = 0
    for done, (name, digest) in enumerate(found, 1):
        with tempfile.SpooledTemporaryFile(max_size=8 << 20) as file:
            try:
                for piece in rooms[name].stream(digest):
                    file.write(piece)
            except NotFound:
                if name != form.ARTIFACTS:
                    raise
                continue  # no artifact has named it for a day, and it was collected just now
            writer.add_file(f"{form.BLOBS}{name}{digest}", file, sum_up=False)
        count += 1
        progress("blobs", done, len(found))
    return count
