"""Bringing a backup back, all of it or nothing: everything is verified first, then blobs go in (which nobody sees as
long as nothing refers to them), and last the rows, in one transaction.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import IO, Any

from sqlalchemy import Column, Connection, MetaData, Table, func, select, text, update

from windlass.blobs.contract import Blobs
from windlass.core.errors import Conflict, InvalidInput
from windlass.db.database import Database
from windlass.db.migrate import HEAD, current_revision, upgrade
from windlass.runs.tables import attempts
from windlass.server.backup import format as form
from windlass.server.backup.filling import insert_rows
from windlass.server.backup.writing import Progress
from windlass.tracking.storedlogs import LogPlace, append

_ROWS_AT_ONCE = 5_000
_LOG_BYTES_AT_ONCE = 8 << 20
_DIGEST_LENGTH = 64


class Backup:
    """An opened backup whose tables, logs and key have been verified; blobs are when they are read."""

    def __init__(self, file: IO[bytes]) -> None:
        file.seek(0)
        try:
            self._tar = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115  # lives as long as `file`
            self._members = {member.name: member for member in self._tar.getmembers()}
        except (tarfile.TarError, EOFError) as error:
            raise InvalidInput(f"this is not a backup, or is cut off: {error}") from error
        if form.HEADER not in self._members:
            raise InvalidInput(f"this is not a backup: {form.HEADER} is not in it")
        self.header = form.Header.from_bytes(self._bytes(form.HEADER))
        if form.CHECKSUMS not in self._members:
            raise InvalidInput(f"the backup is cut off: {form.CHECKSUMS}, which is its end, is not in it")
        self.checksums = form.Checksums(**json.loads(self._bytes(form.CHECKSUMS)))

    def verify(self, progress: Progress) -> None:
        for done, (name, wanted) in enumerate(self.checksums.members.items(), 1):
            if name not in self._members:
                raise InvalidInput(f"the backup is damaged: {name} is not in it")
            found = hashlib.file_digest(self.open(name), "sha256").hexdigest()  # type: ignore[arg-type]
            if found != wanted:
                raise InvalidInput(f"the backup is damaged: the sha256 of {name} is {found}, not {wanted}")
            progress("verified", done, len(self.checksums.members))
        if len(self.blobs()) != self.checksums.blobs:
            raise InvalidInput(f"the backup is damaged: {len(self.blobs())} of {self.checksums.blobs} blobs are in it")

    def open(self, name: str) -> IO[bytes]:
        file = self._tar.extractfile(self._members[name])
        if file is None:
            raise InvalidInput(f"the backup is damaged: {name} is not a file")
        return file

    def blobs(self) -> list[str]:
        """Their digests, with the room's name before those of a room."""
        return [name.removeprefix(form.BLOBS) for name in self._members if name.startswith(form.BLOBS)]

    def logs(self) -> Iterator[tuple[LogPlace, str, str]]:
        """(whose, the log's name, the member)."""
        for name in self._members:
            if name.startswith(form.LOGS):
                attempt_id, rank, file = name.removeprefix(form.LOGS).split("/")
                yield LogPlace(attempt_id, int(rank)), file.removesuffix(".gz"), name

    def secret_key(self) -> bytes | None:
        return self._bytes(form.SECRET_KEY) if form.SECRET_KEY in self._members else None

    def _bytes(self, name: str) -> bytes:
        return self.open(name).read()


def restore(
    backup: Backup,
    db: Database,
    blobs: Blobs,
    *,
    force: bool = False,
    progress: Progress = lambda _what, _done, _total: None,
) -> Mapping[str, int]:
    """Rows by table. Raises Conflict for a database that holds something, unless `force` says that it may go."""
    if backup.header.schema > HEAD:
        raise Conflict(
            f"the backup has schema {backup.header.schema}; this version knows {HEAD}",
            hint=f"it was made by Windlass {backup.header.windlass}: install that version or a newer one",
        )
    if not force:
        _check_empty(db)
    backup.verify(progress)
    names = backup.blobs()
    rooms = {"": blobs, form.ARTIFACTS: blobs.room(form.ARTIFACTS.strip("/"))}
    for done, name in enumerate(names, 1):
        room, digest = name[:-_DIGEST_LENGTH], name[-_DIGEST_LENGTH:]
        rooms[room].put_stream(digest, backup.open(f"{form.BLOBS}{name}"))  # type: ignore[arg-type]
        progress("blobs", done, len(names))
    current = current_revision(db)
    with db.write() as tx:
        if force or current != backup.header.schema:
            _drop_everything(tx)
            upgrade(tx, backup.header.schema)
        rows = _insert_tables(tx, backup, progress)
        if backup.header.schema != HEAD:
            upgrade(tx, HEAD)
        _insert_logs(tx, backup, progress)
    return rows


def _check_empty(db: Database) -> None:
    with db.read() as tx:
        found = _reflected(tx)
        for table in found.sorted_tables:
            if table.name not in form.LEFT_OUT and tx.execute(select(table).limit(1)).first() is not None:
                count = tx.execute(select(func.count()).select_from(table)).scalar_one()
                raise Conflict(
                    f"the database {db.describe()} is not empty: {table.name} has {count} rows",
                    hint="--force deletes all that is in it; or give another with --config or WINDLASS_DATABASE_URL",
                )


def _reflected(tx: Connection) -> MetaData:
    found = MetaData()
    found.reflect(tx)
    return found


def _drop_everything(tx: Connection) -> None:
    _reflected(tx).drop_all(tx)


def _insert_tables(tx: Connection, backup: Backup, progress: Progress) -> dict[str, int]:
    found = _reflected(tx)
    wanted = dict(backup.checksums.rows)
    if unknown := [name for name in wanted if name not in found.tables]:
        raise InvalidInput(f"the backup has a table {unknown[0]}, which schema {backup.header.schema} does not have")
    done, total = 0, sum(wanted.values())
    for table in found.sorted_tables:
        if table.name not in wanted:
            continue
        count = 0
        for columns, rows in _batches(backup, table):
            insert_rows(tx, table, columns, rows)
            count += len(rows)
            progress("rows", done + count, total)
        if count != wanted[table.name]:
            raise InvalidInput(f"the backup is damaged: {table.name} has {count} rows, not {wanted[table.name]}")
        done += count
        _go_on_counting(tx, table)
    return wanted


def _batches(backup: Backup, table: Table) -> Iterator[tuple[list[Column[Any]], list[dict[str, Any]]]]:
    with gzip.open(backup.open(f"{form.TABLES}{table.name}.jsonl.gz")) as lines:
        columns = form.read_columns(lines, table)  # type: ignore[arg-type]
        while rows := [form.decode_row(line, columns) for line in islice(lines, _ROWS_AT_ONCE)]:
            yield columns, rows


def _go_on_counting(tx: Connection, table: Table) -> None:
    """PostgreSQL numbers rows from a sequence, which knows nothing of rows that came with their numbers."""
    if tx.dialect.name != "postgresql":
        return
    for column in table.primary_key.columns:
        name = tx.execute(
            text("SELECT pg_get_serial_sequence(:table, :column)"),
            {"table": f'"{table.name}"', "column": column.name},
        ).scalar()
        if name is not None:
            highest = tx.execute(select(func.max(column))).scalar()
            if highest:  # the default experiment is 0, which no sequence can be set to
                tx.execute(text("SELECT setval(:name, :value)"), {"name": name, "value": highest})


def _insert_logs(tx: Connection, backup: Backup, progress: Progress) -> None:
    """Logs that lay in folders of another machine are kept with the rows from now on."""
    found = list(backup.logs())
    moved: dict[str, dict[int, LogPlace]] = {}
    for done, (place, name, member) in enumerate(found, 1):
        with gzip.open(backup.open(member)) as log:
            position = 0
            while data := log.read(_LOG_BYTES_AT_ONCE):
                append(tx, place, name, position, data)  # what an archive in the making has of it is cut
                position += len(data)
        moved.setdefault(place.attempt_id, {})[place.node_rank] = place
        progress("logs", done, len(found))
    for attempt_id, places in moved.items():
        dirs = tx.execute(select(attempts.c.log_dirs).where(attempts.c.id == attempt_id)).scalar_one()
        dirs = [str(places.get(rank, folder)) for rank, folder in enumerate(dirs)]
        tx.execute(update(attempts).where(attempts.c.id == attempt_id).values(log_dirs=dirs))
