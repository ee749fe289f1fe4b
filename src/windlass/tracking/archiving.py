"""Moving the logs of attempts that are over to where they stay: few large blobs, with an index in the database.

A blob is written before the row that names it, and rows change in one transaction: whatever is interrupted is done
again, and readers see the same bytes before, meanwhile and after.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import delete, func, select

from windlass.agent import layout
from windlass.blobs.contract import Blobs
from windlass.db.database import Database
from windlass.tracking.logs import FolderLog
from windlass.tracking.storedlogs import LogPlace, StoredLog, load_size, put_blob
from windlass.tracking.tables import log_chunks, log_files, log_watches

_BLOB_BYTES = 1 << 20  # compressed; a file's last blob may be smaller
_MOST_RAW_BYTES = 16 << 20  # a reader in the middle of a blob unpacks all of it


class _Packed(NamedTuple):
    start: int
    size: int
    data: bytes


def archive_attempt(db: Database, blobs: Blobs, attempt_id: str, log_dirs: Sequence[str]) -> list[str]:
    """Where its logs are to be read once the caller has noted it. Raises OSError for a folder that cannot be read from
    here, Unavailable while the blobs are away, Conflict if somebody else does the same at this moment.
    """
    places = [LogPlace(attempt_id, rank) for rank in range(len(log_dirs))]
    for place, text in zip(places, log_dirs, strict=True):
        if LogPlace.parse(text) is None:
            archive_folder(db, blobs, place, Path(text))
    archive_logs(db, blobs, attempt_id)
    return [str(place) for place in places]


def archive_logs(db: Database, blobs: Blobs, attempt_id: str) -> None:
    """Move what the attempt's nodes sent from the database to blobs. Nobody writes to these logs any more."""
    with db.read() as tx:
        files = tx.execute(select(log_files).where(log_files.c.attempt_id == attempt_id)).all()
    for file in files:
        log = StoredLog(db, blobs, LogPlace(file.attempt_id, file.node_rank), file.name, file.size)
        start = _first_in_database(db, log)
        if start is not None:
            _store(db, blobs, log.place, log.name, _pack(log.pieces(start), start))
    with db.write() as tx:
        tx.execute(delete(log_watches).where(log_watches.c.attempt_id == attempt_id))


def archive_folder(db: Database, blobs: Blobs, place: LogPlace, folder: Path) -> None:
    """Copy the rank logs in `folder` to blobs, to be read at `place` from then on. The folder is left as it is."""
    for name in sorted(os.listdir(folder)):
        if layout.rank_of_log(name) is None and name not in layout.NODE_LOGS:
            continue
        with db.read() as tx:
            start = load_size(tx, place, name) or 0
        _store(db, blobs, place, name, _pack(FolderLog(folder / name).pieces(start), start))


def _first_in_database(db: Database, log: StoredLog) -> int | None:
    """Where the chunks begin that are not in blobs yet: those are always the last ones."""
    mine = (
        log_chunks.c.attempt_id == log.place.attempt_id,
        log_chunks.c.node_rank == log.place.node_rank,
        log_chunks.c.name == log.name,
    )
    with db.read() as tx:
        query = select(func.min(log_chunks.c.start)).where(*mine, log_chunks.c.blob.is_(None))
        start: int | None = tx.execute(query).scalar()
    return start


def _store(db: Database, blobs: Blobs, place: LogPlace, name: str, packed: Iterable[_Packed]) -> None:
    for part in packed:
        digest = blobs.put(part.data)
        with db.write() as tx:
            put_blob(tx, place, name, part.start, part.size, digest)


def _pack(pieces: Iterator[bytes], start: int) -> Iterator[_Packed]:
    """Cut between pieces only: chunks of the database are moved whole."""
    size, output, packer = 0, bytearray(), zlib.compressobj()
    for piece in pieces:
        output += packer.compress(piece)
        size += len(piece)
        if len(output) >= _BLOB_BYTES or size >= _MOST_RAW_BYTES:
            yield _Packed(start, size, bytes(output + packer.flush()))
            start, size, output, packer = start + size, 0, bytearray(), zlib.compressobj()
    if size:
        yield _Packed(start, size, bytes(output + packer.flush()))
