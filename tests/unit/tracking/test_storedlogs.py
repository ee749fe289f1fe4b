from __future__ import annotations

import random
import zlib
from pathlib import Path

import pytest
from sqlalchemy import func, select

from windlass.agent.layout import rank_log
from windlass.agent.ranklog import timestamp
from windlass.blobs.local import LocalBlobs
from windlass.core.errors import Conflict
from windlass.db.database import Database
from windlass.tracking import archiving, storedlogs
from windlass.tracking.archiving import archive_folder, archive_logs
from windlass.tracking.logs import LogCursor, LogFile, find_logs, read_page, seek_tail
from windlass.tracking.storedlogs import LogPlace, StoredLogs, append, put_blob
from windlass.tracking.tables import log_chunks

PLACE = LogPlace("r-bcdfghjkmn.1", 0)
NAME = rank_log(0)


def lines(count: int, *, first: int = 0) -> bytes:
    rows = [f"{timestamp(1_700_000_000.0 + i)} o line {i}\n" for i in range(first, first + count)]
    return "".join(rows).encode()


def put(db: Database, data: bytes, position: int, place: LogPlace = PLACE) -> int:
    with db.write() as tx:
        return append(tx, place, NAME, position, data)


def files(db: Database, blobs: LocalBlobs, *places: LogPlace) -> list[LogFile]:
    return find_logs({1: [str(place) for place in places or (PLACE,)]}, stored=StoredLogs(db, blobs))


def content(db: Database, blobs: LocalBlobs, position: int = 0) -> bytes:
    found = files(db, blobs)
    return b"".join(found[0].content.pieces(position)) if found else b""


def chunks(db: Database) -> int:
    with db.read() as tx:
        return int(tx.execute(select(func.count()).select_from(log_chunks)).scalar_one())


def test_places_are_written_and_read() -> None:
    assert LogPlace.parse(str(PLACE)) == PLACE
    assert LogPlace.parse("/home/me/runs/r-1/attempts/1/node-0") is None


def test_bytes_are_appended_once_whatever_is_sent_again(database: Database, blobs: LocalBlobs) -> None:
    data = lines(100)
    assert put(database, data[:50], 0) == 50
    assert put(database, data[:50], 0) == 50
    assert put(database, data[20:80], 20) == 80
    assert put(database, data[200:], 200) == 80  # a gap is not filled
    assert put(database, data[80:], 80) == len(data)
    assert content(database, blobs) == data
    assert content(database, blobs, 33) == data[33:]


def test_any_cuts_give_the_same_file(database: Database, blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storedlogs, "_SMALL_BYTES", 200)
    monkeypatch.setattr(storedlogs, "_CHUNK_BYTES", 500)
    chance = random.Random(7)
    data = lines(400)
    known = 0
    while known < len(data):
        position = chance.randint(max(0, known - 300), known)
        known = put(database, data[position : position + chance.randint(1, 1_500)], position)
    assert content(database, blobs) == data
    for position in [0, 1, 199, 200, 500, len(data) - 1, len(data)]:
        assert content(database, blobs, position) == data[position:]


def test_many_small_appends_make_few_rows(sqlite: Database) -> None:
    data = lines(1_000)
    for position in range(0, len(data), 100):
        put(sqlite, data[position : position + 100], position)
    assert chunks(sqlite) <= 2


def test_pages_and_tails_are_those_of_a_folder(sqlite: Database, blobs: LocalBlobs, tmp_path: Path) -> None:
    folder = tmp_path / "node-0"
    folder.mkdir()
    (folder / NAME).write_bytes(lines(500))
    put(sqlite, lines(500), 0)
    both = [find_logs({1: [str(folder)]}), files(sqlite, blobs)]
    tails = [[r.text for r in read_page(found, seek_tail(found, 7), limit=100)] for found in both]
    assert tails[0] == tails[1] == [f"line {i}" for i in range(493, 500)]
    cursors = [LogCursor(), LogCursor()]
    for _ in range(6):
        pages = [read_page(found, cursor, limit=90) for found, cursor in zip(both, cursors, strict=True)]
        assert pages[0] == pages[1]
    assert cursors[0] == cursors[1]


def test_places_are_found_among_folders_and_a_follower_goes_on(sqlite: Database, blobs: LocalBlobs) -> None:
    other = LogPlace(PLACE.attempt_id, 1)
    cursor = LogCursor()
    put(sqlite, lines(2), 0)
    assert len(read_page(files(sqlite, blobs, PLACE, other), cursor, limit=10)) == 2
    put(sqlite, lines(3), 0)
    with sqlite.write() as tx:
        append(tx, other, rank_log(1), 0, lines(1, first=9))
    found = read_page(files(sqlite, blobs, PLACE, other), cursor, limit=10)
    assert [(record.rank, record.text) for record in found] == [(0, "line 2"), (1, "line 9")]


def test_archived_logs_read_the_same_and_leave_the_database(
    database: Database, blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storedlogs, "_SMALL_BYTES", 200)
    monkeypatch.setattr(storedlogs, "_CHUNK_BYTES", 500)
    monkeypatch.setattr(archiving, "_MOST_RAW_BYTES", 3_000)
    data = lines(400)
    put(database, data, 0)
    before = chunks(database)
    archive_logs(database, blobs, PLACE.attempt_id)
    assert chunks(database) < before
    with database.read() as tx:
        assert tx.execute(select(func.count()).where(log_chunks.c.data.is_not(None))).scalar_one() == 0
    for position in [0, 1, 2_999, 3_000, len(data) - 1]:
        assert content(database, blobs, position) == data[position:]
    archive_logs(database, blobs, PLACE.attempt_id)
    assert content(database, blobs) == data


def test_archiving_that_is_cut_off_goes_on_where_it_was(
    sqlite: Database, blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storedlogs, "_CHUNK_BYTES", 500)
    monkeypatch.setattr(archiving, "_MOST_RAW_BYTES", 3_000)
    data = lines(400)
    put(sqlite, data, 0)
    left = 2

    class Broken(LocalBlobs):
        def put(self, data: bytes) -> str:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError("the store is away")
            return super().put(data)

    with pytest.raises(OSError, match="away"):
        archive_logs(sqlite, Broken(blobs.root), PLACE.attempt_id)
    assert content(sqlite, blobs) == data
    archive_logs(sqlite, blobs, PLACE.attempt_id)
    assert content(sqlite, blobs) == data


def test_a_folder_is_archived_to_a_place(sqlite: Database, blobs: LocalBlobs, tmp_path: Path) -> None:
    folder = tmp_path / "node-0"
    folder.mkdir()
    (folder / NAME).write_bytes(lines(300))
    (folder / "plan.json").write_text("{}")
    archive_folder(sqlite, blobs, PLACE, folder)
    archive_folder(sqlite, blobs, PLACE, folder)
    assert content(sqlite, blobs) == lines(300)
    assert chunks(sqlite) == 1


def test_a_watched_attempt_is_known_until_nobody_watches(database: Database, blobs: LocalBlobs) -> None:
    logs = StoredLogs(database, blobs)
    for now in (100.0, 101.0):
        logs.watch([PLACE.attempt_id], now=now)
    with database.read() as tx:
        assert storedlogs.is_watched(tx, PLACE.attempt_id, now=110.0)
        assert not storedlogs.is_watched(tx, PLACE.attempt_id, now=117.0)
        assert not storedlogs.is_watched(tx, "r-other.1", now=110.0)


def test_two_that_move_the_same_log_and_cut_it_differently(database: Database, blobs: LocalBlobs) -> None:
    """The slower one finds that part of its bytes lie in a blob that goes on: it must not cut off the rest."""
    data = lines(300)
    cut, end = 1_000, len(data) - 500
    for start, stop in ((0, cut), (cut, end), (end, len(data))):
        put_part(database, blobs, data, start, stop)
    with pytest.raises(Conflict, match=r"bytes 0 to 2000 are not those of whole chunks"):
        put_part(database, blobs, data, 0, 2_000)
    with pytest.raises(Conflict, match=r"not those of whole chunks"):
        put_part(database, blobs, data, 1_500, end)
    assert content(database, blobs) == data
    put_part(database, blobs, data, 0, end)  # whole ones may be put together
    assert content(database, blobs) == data
    assert chunks(database) == 2


def put_part(db: Database, blobs: LocalBlobs, data: bytes, start: int, end: int) -> None:
    digest = blobs.put(zlib.compress(data[start:end]))
    with db.write() as tx:
        put_blob(tx, PLACE, NAME, start, end - start, digest)
