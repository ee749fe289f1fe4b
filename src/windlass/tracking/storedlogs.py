"""Rank logs that nodes sent over HTTP, or that were archived: in the database in compressed chunks, or in blobs that
rows point to. Appending is idempotent by position: bytes that are here already are cut, a gap is not filled.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, func, insert, select, tuple_, update

from windlass.blobs.contract import Blobs
from windlass.core.errors import Conflict, NotFound
from windlass.db.database import Database
from windlass.db.insertion import insert_missing
from windlass.tracking.tables import log_chunks, log_files, log_watches

SCHEME = "stored://"
_SMALL_BYTES = 64 << 10  # a last chunk below this takes what comes next: many small appends make few rows
_CHUNK_BYTES = 1 << 20
_ROWS_PER_READ = 8
_WATCH_S = 15.0


class LogPlace(NamedTuple):
    """The logs of one node of an attempt."""

    attempt_id: str
    node_rank: int

    @classmethod
    def parse(cls, text: str) -> LogPlace | None:
        """None if `text` is a folder."""
        if not text.startswith(SCHEME):
            return None
        attempt_id, _, rank = text[len(SCHEME) :].rpartition("/")
        return cls(attempt_id, int(rank))

    def __str__(self) -> str:
        return f"{SCHEME}{self.attempt_id}/{self.node_rank}"


# Writing ------------------------------------------------------------------------------------------------------------


def append(tx: Connection, place: LogPlace, name: str, position: int, data: bytes) -> int:
    """Add what is new of `data`, which begins at `position`; the position that is expected next. The caller has made
    sure that nobody else writes to the place.
    """
    size = load_size(tx, place, name)
    known = size or 0
    fresh = data[known - position :] if position <= known else b""
    if not fresh:
        return known
    _add(tx, place, name, known, fresh)
    _set_size(tx, place, name, known + len(fresh), is_new=size is None)
    return known + len(fresh)


def load_size(tx: Connection, place: LogPlace, name: str) -> int | None:
    size: int | None = tx.execute(select(log_files.c.size).where(_of(log_files, place, name))).scalar()
    return size


def _add(tx: Connection, place: LogPlace, name: str, start: int, data: bytes) -> None:
    last = tx.execute(
        select(log_chunks.c.start, log_chunks.c.size, log_chunks.c.data)
        .where(_of(log_chunks, place, name))
        .order_by(log_chunks.c.start.desc())
        .limit(1)
    ).first()
    if last is not None and last.data is not None and last.size < _SMALL_BYTES:
        taken, data = data[:_SMALL_BYTES], data[_SMALL_BYTES:]
        merged = zlib.decompress(last.data) + taken
        tx.execute(
            update(log_chunks)
            .where(_of(log_chunks, place, name), log_chunks.c.start == last.start)
            .values(size=len(merged), data=zlib.compress(merged, 1))
        )
        start += len(taken)
    rows = [
        {"start": start + cut, "size": len(part), "data": zlib.compress(part, 1)}
        for cut in range(0, len(data), _CHUNK_BYTES)
        if (part := data[cut : cut + _CHUNK_BYTES])
    ]
    if rows:
        key = {"attempt_id": place.attempt_id, "node_rank": place.node_rank, "name": name}
        tx.execute(insert(log_chunks), [{**key, **row} for row in rows])


def _set_size(tx: Connection, place: LogPlace, name: str, size: int, *, is_new: bool) -> None:
    if is_new:
        key = {"attempt_id": place.attempt_id, "node_rank": place.node_rank, "name": name}
        tx.execute(insert(log_files).values(**key, size=size))
    else:
        tx.execute(update(log_files).where(_of(log_files, place, name)).values(size=size))


def put_blob(tx: Connection, place: LogPlace, name: str, start: int, size: int, digest: str) -> None:
    """From here on the blob holds these bytes, which are those of whole chunks or come after the last one. Raises
    Conflict if they are not: somebody else has moved part of them meanwhile, and cut elsewhere."""
    end = start + size
    # The lock keeps others from changing the chunks between looking and deleting.
    known = tx.execute(select(log_files.c.size).where(_of(log_files, place, name)).with_for_update()).scalar()
    touched = and_(
        _of(log_chunks, place, name), log_chunks.c.start < end, log_chunks.c.start + log_chunks.c.size > start
    )
    for row in tx.execute(select(log_chunks.c.start, log_chunks.c.size).where(touched)):
        if row.start < start or row.start + row.size > end:
            raise Conflict(f"{place}/{name}: bytes {start} to {end} are not those of whole chunks; look again")
    tx.execute(delete(log_chunks).where(touched))
    key = {"attempt_id": place.attempt_id, "node_rank": place.node_rank, "name": name}
    tx.execute(insert(log_chunks).values(**key, start=start, size=size, blob=digest))
    if known is None or known < end:
        _set_size(tx, place, name, end, is_new=known is None)


# Reading ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredLog:
    """One file, as large as it was when it was found."""

    db: Database
    blobs: Blobs
    place: LogPlace
    name: str
    known_size: int

    def size(self) -> int:
        return self.known_size

    def pieces(self, position: int) -> Iterator[bytes]:
        """Its bytes from `position` on, in order. No transaction is open between two pieces."""
        while position < self.known_size:
            rows = self._rows(position)
            if not rows:
                return
            for row in rows:
                content = zlib.decompress(row.data if row.data is not None else self.blobs.get(row.blob))
                yield content[position - row.start :]
                position = row.start + row.size

    def _rows(self, position: int) -> Sequence[Any]:
        mine = _of(log_chunks, self.place, self.name)
        first = select(func.max(log_chunks.c.start)).where(mine, log_chunks.c.start <= position).scalar_subquery()
        query = (
            select(log_chunks.c.start, log_chunks.c.size, log_chunks.c.data, log_chunks.c.blob)
            .where(mine, log_chunks.c.start >= first)
            .order_by(log_chunks.c.start)
            .limit(_ROWS_PER_READ)
        )
        with self.db.read() as tx:
            rows = tx.execute(query).all()
        if rows and rows[0].start + rows[0].size <= position:
            raise NotFound(f"{self.place}/{self.name} has no byte {position}, though it has {self.known_size}")
        return rows


class StoredLogs:
    """Finds stored logs. One query for all places, since followers ask again and again."""

    def __init__(self, db: Database, blobs: Blobs) -> None:
        self._db = db
        self._blobs = blobs

    def find(self, places: Sequence[LogPlace]) -> list[StoredLog]:
        key = tuple_(log_files.c.attempt_id, log_files.c.node_rank)
        with self._db.read() as tx:
            rows = tx.execute(select(log_files).where(key.in_([tuple(place) for place in places]))).all()
        return [
            StoredLog(self._db, self._blobs, LogPlace(row.attempt_id, row.node_rank), row.name, row.size)
            for row in rows
        ]

    def watch(self, attempt_ids: Sequence[str], *, now: float) -> None:
        """Somebody follows these attempts now; to be repeated within a few seconds as long as it is so."""
        with self._db.write() as tx:
            for attempt_id in attempt_ids:
                mine = log_watches.c.attempt_id == attempt_id
                if not tx.execute(update(log_watches).where(mine).values(until=now + _WATCH_S)).rowcount:
                    # Two followers may begin at once.
                    insert_missing(tx, log_watches, [{"attempt_id": attempt_id, "until": now + _WATCH_S}])


def is_watched(tx: Connection, attempt_id: str, *, now: float) -> bool:
    until = tx.execute(select(log_watches.c.until).where(log_watches.c.attempt_id == attempt_id)).scalar()
    return until is not None and until > now


def _of(table: Table, place: LogPlace, name: str) -> ColumnElement[bool]:
    columns = table.c
    return and_(columns.attempt_id == place.attempt_id, columns.node_rank == place.node_rank, columns.name == name)
