"""Artifacts: names over blobs, whole or not there, deduplicated, and collected when nobody names them; on both
databases, over a folder, a store in memory and a real S3 server."""

from __future__ import annotations

import hashlib
import io
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.locks import until_it_waits
from windlass.artifacts import store
from windlass.artifacts.service import ArtifactService
from windlass.artifacts.types import Entry, Keeping
from windlass.artifacts.uploads import UploadService
from windlass.blobs.contract import Blobs
from windlass.blobs.local import LocalBlobs
from windlass.blobs.opening import open_blobs
from windlass.core.errors import Conflict, InvalidInput, NotFound, Unavailable
from windlass.db.database import Database
from windlass.testing.clock import FakeClock
from windlass.testing.s3 import S3Server
from windlass.wire.config import BlobsSection

BIG = random.Random(7).randbytes((17 << 20) + 5)
DAY = 86_400.0


@pytest.fixture(params=["folder", "memory", "s3"])
def room(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    if request.param == "folder":
        return LocalBlobs(tmp_path / "blobs").room("artifacts")
    if request.param == "memory":
        return open_blobs(BlobsSection(url="memory://"), home=tmp_path, environ={}).room("artifacts")
    server: S3Server = request.getfixturevalue("s3_server")
    return open_blobs(server.section(), home=tmp_path, environ=server.environ).room("artifacts")


@pytest.fixture
def artifacts(database: Database, clock: FakeClock, room: Blobs) -> ArtifactService:
    return ArtifactService(db=database, clock=clock, blobs=room)


@pytest.fixture
def uploads(database: Database, clock: FakeClock, room: Blobs, artifacts: ArtifactService) -> UploadService:
    return UploadService(db=database, clock=clock, blobs=room, artifacts=artifacts)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def names(entries: list[Entry]) -> list[str]:
    return [f"{entry.path}/" if entry.is_dir else entry.path for entry in entries]


def send_part(uploads: UploadService, artifacts: ArtifactService, upload_id: str, number: int, data: bytes) -> None:
    with closing(artifacts.intake()) as intake:
        intake.write(data)
        assert uploads.put_part(upload_id, number, intake).digest == sha(data)


def test_a_file_comes_back_whole_and_in_ranges(artifacts: ArtifactService) -> None:
    for path, data in {"0/r/artifacts/empty": b"", "0/r/artifacts/a.txt": b"hello", "0/r/artifacts/big": BIG}.items():
        kept = artifacts.put_stream(path, io.BytesIO(data))
        assert (kept.path, kept.digest, kept.size_bytes) == (path, sha(data), len(data))
        content = artifacts.open(path)
        assert (content.size_bytes, content.tag, content.name) == (len(data), sha(data), path.rpartition("/")[2])
        assert b"".join(content.read(0, len(data))) == data
    assert b"".join(content.read(1_000_000, 1_000_010)) == BIG[1_000_000:1_000_010]


def test_lists_have_files_and_folders_by_name(artifacts: ArtifactService) -> None:
    for path in ("r/b.txt", "r/a/x", "r/a/y/z", "r/a.txt", "ra/other", "r/é", "r-/between"):
        artifacts.put_bytes(path, path.encode())
    assert names(artifacts.children("r")) == ["r/a/", "r/a.txt", "r/b.txt", "r/é"]
    assert names(artifacts.children("r/a")) == ["r/a/x", "r/a/y/"]
    assert names(artifacts.children("")) == ["r/", "r-/", "ra/"]
    assert artifacts.children("r/b.txt") == artifacts.children("nowhere") == []
    assert names(artifacts.files_below("r/a")) == ["r/a/x", "r/a/y/z"]
    assert len(artifacts.files_below("")) == 7


def test_paths_are_written_in_one_way(artifacts: ArtifactService) -> None:
    artifacts.put_bytes("./r//x", b"1")
    assert artifacts.get_bytes("r/x") == b"1"
    for wrong in ("../x", "r/../../x", "", "r/", "a\0b", "\ud800", "x" * 501, "/".join(["x" * 400] * 6)):
        with pytest.raises(InvalidInput):
            artifacts.put_bytes(wrong, b"")
    assert names(artifacts.files_below("")) == ["r/x"]


def test_what_is_put_again_replaces(artifacts: ArtifactService) -> None:
    artifacts.put_bytes("r/x", b"old")
    before = artifacts.open("r/x")
    artifacts.put_bytes("r/x", b"newer")
    assert artifacts.get_bytes("r/x") == b"newer"
    assert b"".join(before.read(0, 3)) == b"old", "who has begun to read goes on reading the same"


def test_files_and_folders_do_not_take_each_others_names(artifacts: ArtifactService) -> None:
    artifacts.put_bytes("r/a/x", b"1")
    with pytest.raises(Conflict, match="'r/a' is a folder"):
        artifacts.put_bytes("r/a", b"2")
    with pytest.raises(Conflict, match="'r/a/x/y' cannot lie in 'r/a/x', which is a file"):
        artifacts.put_bytes("r/a/x/y", b"3")
    with pytest.raises(Conflict, match="folder"):
        artifacts.open("r/a")
    with pytest.raises(NotFound):
        artifacts.open("r/b")
    assert names(artifacts.files_below("")) == ["r/a/x"]


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ("a/x/y", "a/x", "'a/x' is a folder"),
        ("a/x", "a/x/y", "'a/x/y' cannot lie in 'a/x', which is a file"),
        ("x", "x/y/z", "'x/y/z' cannot lie in 'x', which is a file"),
    ],
)
def test_nor_do_they_when_they_come_at_once(
    database: Database, clock: FakeClock, tmp_path: Path, first: str, second: str, why: str
) -> None:
    artifacts = ArtifactService(db=database, clock=clock, blobs=LocalBlobs(tmp_path / "blobs").room("artifacts"))
    kept = artifacts.put_bytes("elsewhere", b"data")
    with ThreadPoolExecutor(1) as pool:
        with database.write() as tx:
            assert store.put_file(tx, replace(kept, path=first))
            later = pool.submit(artifacts.name, second, kept.digest, kept.size_bytes)
            until_it_waits(database, later)
        with pytest.raises(Conflict, match=why):
            later.result(60)
    assert sorted(names(artifacts.files_below(""))) == sorted(["elsewhere", first])


def test_of_two_that_put_the_same_name_at_once_the_last_counts(
    database: Database, clock: FakeClock, tmp_path: Path
) -> None:
    artifacts = ArtifactService(db=database, clock=clock, blobs=LocalBlobs(tmp_path / "blobs").room("artifacts"))
    one, two = (artifacts.put_bytes(f"d/{data}", data.encode()) for data in ("one", "two"))
    with ThreadPoolExecutor(1) as pool:
        with database.write() as tx:
            assert store.put_file(tx, replace(one, path="d/x"))
            later = pool.submit(artifacts.name, "d/x", two.digest, two.size_bytes)
            until_it_waits(database, later)
        later.result(60)
    assert artifacts.get_bytes("d/x") == b"two"


def test_deleting_a_file_and_a_folder(artifacts: ArtifactService) -> None:
    for path in ("r/a/x", "r/a/y/z", "r/a.txt", "r/a0"):
        artifacts.put_bytes(path, b"1")
    assert artifacts.delete("r/a") == 2
    assert names(artifacts.children("r")) == ["r/a.txt", "r/a0"]
    assert artifacts.delete("r/a.txt") == 1
    assert artifacts.delete("r/a.txt") == artifacts.delete("nowhere") == 0
    artifacts.put_bytes("r/a/x", b"2")
    assert names(artifacts.files_below("r")) == ["r/a/x", "r/a0"]


def test_the_same_content_is_kept_once_and_as_long_as_one_names_it(
    artifacts: ArtifactService, room: Blobs, clock: FakeClock
) -> None:
    for path in ("r/a", "r/b", "q/c"):
        artifacts.put_bytes(path, b"same")
    assert list(room.digests()) == [sha(b"same")]
    artifacts.delete("r")
    clock.advance(3 * DAY)
    assert artifacts.collect() == 0
    assert artifacts.get_bytes("q/c") == b"same"
    artifacts.put_bytes("q/c", b"other")
    clock.advance(DAY - 1)
    assert artifacts.collect() == 0, "its time runs from when it lost its name"
    clock.advance(2)
    assert artifacts.collect() == 1
    assert artifacts.collect() == 0
    assert list(room.digests()) == [sha(b"other")]


def test_what_was_collected_can_come_again(artifacts: ArtifactService, room: Blobs, clock: FakeClock) -> None:
    for _ in range(2):
        artifacts.put_bytes("r/x", b"same")
        artifacts.delete("r/x")
        clock.advance(2 * DAY)
        assert artifacts.collect() == 1
        assert list(room.digests()) == []


def test_a_blob_that_was_placed_and_never_named_goes(artifacts: ArtifactService, room: Blobs, clock: FakeClock) -> None:
    """As a server that dies between both leaves it."""
    with closing(artifacts.intake()) as intake:
        intake.write(b"orphan")
        artifacts.place(intake)
    assert artifacts.collect() == 0
    assert room.has(sha(b"orphan"))
    clock.advance(DAY + 1)
    assert artifacts.collect() == 1
    assert list(room.digests()) == []


def test_a_blob_that_was_claimed_and_never_placed_goes(
    database: Database, clock: FakeClock, room: Blobs, artifacts: ArtifactService
) -> None:
    class Dies(Exception):
        pass

    with closing(artifacts.intake()) as intake:
        intake.write(b"never")

        def place() -> None:
            raise Dies

        intake.place = place  # type: ignore[method-assign]
        with pytest.raises(Dies):
            artifacts.put("r/x", intake)
    assert artifacts.find("r/x") is None
    clock.advance(DAY + 1)
    assert artifacts.collect() == 1


def test_a_blob_deleted_by_a_collector_that_died_goes_again(
    database: Database, clock: FakeClock, room: Blobs, artifacts: ArtifactService
) -> None:
    artifacts.put_bytes("r/x", b"1")
    artifacts.delete("r/x")
    room.delete(sha(b"1"))  # and its commit never came
    artifacts.put_bytes("r/y", b"1")
    assert artifacts.get_bytes("r/y") == b"1"


def test_a_file_that_took_longer_than_blobs_are_kept_is_refused(artifacts: ArtifactService, clock: FakeClock) -> None:
    with closing(artifacts.intake()) as intake:
        intake.write(b"slow")
        digest = artifacts.place(intake)
    clock.advance(DAY + 1)
    assert artifacts.collect() == 1
    with pytest.raises(Unavailable, match="took too long"):
        artifacts.name("r/x", digest, 4)
    assert artifacts.find("r/x") is None


def test_a_file_that_took_too_long_is_refused_while_another_claims_its_blob(
    database: Database, artifacts: ArtifactService, clock: FakeClock
) -> None:
    claimed_at = clock.now()
    with closing(artifacts.intake()) as intake:
        intake.write(b"slow")
        digest = artifacts.place(intake)
    clock.advance(DAY + 1)
    assert artifacts.collect() == 1
    with database.write() as tx:
        store.claim_blob(tx, digest, 4, now=clock.now())  # and it is yet to be placed
    with pytest.raises(Unavailable, match="took too long"):
        artifacts.name("r/x", digest, 4, claimed_at=claimed_at)
    assert artifacts.find("r/x") is None


def test_blobs_in_use_are_never_collected_while_others_come_and_go(
    database: Database, room: Blobs, clock: FakeClock
) -> None:
    """Four writers put and delete the same few contents while a collector runs that keeps nothing for longer than it
    must: whatever has a name can be read."""
    artifacts = ArtifactService(db=database, clock=clock, blobs=room, keeping=Keeping(blobs_s=3_600))
    contents = [f"content {number}".encode() for number in range(3)]
    stop = threading.Event()

    def collect() -> int:
        count = 0
        while not stop.is_set():
            count += artifacts.collect()
            clock.advance(1_000)
        return count

    def write(seed: int) -> None:
        rng = random.Random(seed)
        for turn in range(12):
            path, data = f"w{seed}/{turn % 2}", rng.choice(contents)
            try:
                artifacts.put_bytes(path, data)
            except Unavailable:  # the clock races: it took an hour
                continue
            assert artifacts.get_bytes(path) == data
            if rng.random() < 0.5:
                artifacts.delete(path)

    with ThreadPoolExecutor(5) as pool:
        collecting = pool.submit(collect)
        writers = [pool.submit(write, seed) for seed in range(4)]
        try:
            for writer in writers:
                writer.result(120)
        finally:
            stop.set()
        collecting.result(120)
    for entry in artifacts.files_below(""):
        assert artifacts.get_bytes(entry.path) in contents


def test_many_at_once_in_one_folder(artifacts: ArtifactService) -> None:
    def put(number: int) -> None:
        artifacts.put_bytes(f"r/deep/er/{number % 10}", str(number % 10).encode())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(40)))
    assert [artifacts.get_bytes(entry.path) for entry in artifacts.children("r/deep/er")] == [
        str(number).encode() for number in range(10)
    ]


# ---- parts -----------------------------------------------------------------------------------------------------------


def test_parts_become_one_file_in_the_order_of_their_numbers(
    artifacts: ArtifactService, uploads: UploadService, room: Blobs, clock: FakeClock
) -> None:
    upload = uploads.begin("r/big")
    for number in (3, 1, 2):
        send_part(uploads, artifacts, upload.id, number, BIG[(number - 1) * 6_000_000 : number * 6_000_000])
    assert [part.number for part in uploads.load(upload.id).parts] == [1, 2, 3]
    assert artifacts.find("r/big") is None
    kept = uploads.complete(upload.id)
    assert (kept.digest, kept.size_bytes) == (sha(BIG), len(BIG))
    assert artifacts.get_bytes("r/big") == BIG
    with pytest.raises(NotFound, match="there is no upload"):
        uploads.complete(upload.id)
    clock.advance(2 * DAY)
    assert artifacts.collect() == 3
    assert artifacts.get_bytes("r/big") == BIG


def test_a_part_that_is_sent_again_replaces(artifacts: ArtifactService, uploads: UploadService) -> None:
    upload = uploads.begin("r/x")
    for data in (b"torn", b"whole"):
        send_part(uploads, artifacts, upload.id, 1, data)
    uploads.complete(upload.id, path="r/x", parts=[(1, sha(b"whole"))])
    assert artifacts.get_bytes("r/x") == b"whole"


def test_an_upload_that_lacks_parts_is_not_completed(artifacts: ArtifactService, uploads: UploadService) -> None:
    upload = uploads.begin("r/x")
    with pytest.raises(InvalidInput, match="has no parts yet"):
        uploads.complete(upload.id)
    send_part(uploads, artifacts, upload.id, 3, b"c")
    with pytest.raises(InvalidInput, match="lacks part 1 of 3"):
        uploads.complete(upload.id)
    for number in (1, 2):
        send_part(uploads, artifacts, upload.id, number, b"x")
    with pytest.raises(InvalidInput, match=r"part 3 of upload .* not 0000"):
        uploads.complete(upload.id, parts=[(1, sha(b"x")), (2, sha(b"x")), (3, "0000")])
    with pytest.raises(InvalidInput, match="has 3 parts, not 1"):
        uploads.complete(upload.id, parts=[(1, sha(b"x"))])
    with pytest.raises(InvalidInput, match="is of 'r/x', not of 'r/y'"):
        uploads.complete(upload.id, path="r/y")
    for number in (0, 10_001):
        with pytest.raises(InvalidInput, match=f"there is no part {number}"):
            send_part(uploads, artifacts, upload.id, number, b"x")
    assert artifacts.find("r/x") is None


def test_uploads_that_are_aborted_or_given_up_leave_nothing(
    artifacts: ArtifactService, uploads: UploadService, room: Blobs, clock: FakeClock
) -> None:
    aborted, forgotten = uploads.begin("r/x"), uploads.begin("r/y")
    send_part(uploads, artifacts, aborted.id, 1, b"1")
    send_part(uploads, artifacts, forgotten.id, 1, b"2")
    uploads.abort(aborted.id)
    uploads.abort(aborted.id)
    with pytest.raises(NotFound):
        send_part(uploads, artifacts, aborted.id, 2, b"3")
    clock.advance(2 * DAY)
    artifacts.collect()
    assert list(room.digests()) == [sha(b"2")], "its upload may go on"
    clock.advance(6 * DAY)
    artifacts.collect()
    with pytest.raises(NotFound):
        uploads.load(forgotten.id)
    clock.advance(2 * DAY)
    assert artifacts.collect() == 1
    assert list(room.digests()) == []


# ---- what is left of processes that died -----------------------------------------------------------------------------


def test_files_of_intakes_that_died_go_after_a_while(tmp_path: Path, sqlite: Database, clock: FakeClock) -> None:
    room = LocalBlobs(tmp_path / "blobs")
    artifacts = ArtifactService(db=sqlite, clock=clock, blobs=room)
    dead, alive = room.intake(), room.intake()
    for intake in (dead, alive):
        intake.write(b"half")
    old, new = sorted(room.root.glob(".incoming-*"), key=lambda path: path.stat().st_ino)
    os.utime(old, (clock.now() - 2 * DAY,) * 2)
    os.utime(new, (clock.now(),) * 2)
    artifacts.collect()
    assert list(room.root.glob(".incoming-*")) == [new]
    dead.close()
    alive.close()
    assert list(room.root.glob(".incoming-*")) == []
