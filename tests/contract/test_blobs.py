"""What every store of blobs does: a folder, a store in memory, a real S3 server."""

from __future__ import annotations

import hashlib
import io
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from windlass.blobs.bulk import get_many, put_many
from windlass.blobs.code import BlobCode
from windlass.blobs.contract import Blobs
from windlass.blobs.local import LocalBlobs
from windlass.blobs.objects import SINGLE_PUT_BYTES, ObjectBlobs
from windlass.blobs.opening import open_blobs
from windlass.blobs.snapshots import missing_blobs, store_manifest
from windlass.core.errors import InvalidInput, LaunchFailed, NotFound, Unavailable
from windlass.testing.s3 import S3Server
from windlass.wire.config import BlobsSection

NOWHERE = "0" * 64
BIG = b"0123456789abcdef" * ((SINGLE_PUT_BYTES + (3 << 20)) // 16) + b"end"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(params=["folder", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    if request.param == "folder":
        return LocalBlobs(tmp_path / "blobs")
    if request.param == "memory":
        return open_blobs(BlobsSection(url="memory://"), home=tmp_path, environ={})
    server: S3Server = request.getfixturevalue("s3_server")
    return open_blobs(server.section(), home=tmp_path, environ=server.environ)


def test_what_is_put_can_be_got(store: Blobs) -> None:
    for data in (b"", b"hello", bytes(range(256)) * 9):
        name = store.put(data)
        assert name == digest(data)
        assert (store.get(name), store.size(name), store.has(name)) == (data, len(data), True)


def test_what_is_not_there_is_not_found(store: Blobs) -> None:
    assert not store.has(NOWHERE)
    for ask in (store.get, store.size, store.stream):
        with pytest.raises(NotFound, match=f"there is no blob {NOWHERE}"):
            ask(NOWHERE)


def test_putting_twice_is_putting_once(store: Blobs) -> None:
    names = {store.put(b"same") for _ in range(3)}
    store.put_stream(digest(b"same"), io.BytesIO(b"same"))
    assert list(store.digests()) == list(names)


@pytest.mark.parametrize("size", [0, 1, 5_000_000])
def test_a_stream_is_kept_under_its_hash(store: Blobs, size: int) -> None:
    data = b"x" * size
    store.put_stream(digest(data), io.BytesIO(data))
    assert store.get(digest(data)) == data


def test_a_big_stream_comes_back_whole_and_in_parts(store: Blobs) -> None:
    name = digest(BIG)
    store.put_stream(name, io.BytesIO(BIG))
    assert store.size(name) == len(BIG)
    pieces = list(store.stream(name))
    assert b"".join(pieces) == BIG
    if store.describe() != "memory://":  # which has it in memory as it is
        assert max(map(len, pieces)) < len(BIG)


@pytest.mark.parametrize(("start", "end"), [(0, None), (3, None), (3, 7), (0, 0), (5, 100), (10, None), (50, None)])
def test_a_range_of_a_blob(store: Blobs, start: int, end: int | None) -> None:
    name = store.put(b"0123456789")
    assert b"".join(store.stream(name, start=start, end=end)) == b"0123456789"[start:end]


@pytest.mark.parametrize("data", [b"wrong", BIG])
def test_another_content_than_its_hash_is_refused_and_leaves_nothing(store: Blobs, data: bytes) -> None:
    with pytest.raises(InvalidInput, match=f"blob {NOWHERE} has another content: its sha256 is {digest(data)}"):
        store.put_stream(NOWHERE, io.BytesIO(data))
    assert not store.has(NOWHERE)
    assert list(store.digests()) == []


def test_a_stream_that_breaks_off_leaves_nothing(store: Blobs) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > 2_000_000:
                raise ConnectionResetError("gone")
            return super().read(size)

    with pytest.raises(ConnectionResetError):
        store.put_stream(digest(BIG), Broken(BIG))
    assert list(store.digests()) == []


def test_missing_names_each_that_is_not_there_once_and_in_order(store: Blobs) -> None:
    here = [store.put(str(number).encode()) for number in range(5)]
    away = [digest(f"away {number}".encode()) for number in range(300)]
    asked = list(itertools.chain(away, here, away))
    assert store.missing(asked) == away
    assert store.missing(iter(asked)) == away
    assert store.missing([]) == []


def test_deleting(store: Blobs) -> None:
    name, other = store.put(b"a"), store.put(b"b")
    for _ in range(2):
        store.delete(name)
        assert not store.has(name)
    assert list(store.digests()) == [other]
    assert store.put(b"a") == name
    assert store.get(name) == b"a"


def test_many_put_the_same_and_others_at_once(store: Blobs) -> None:
    contents = [str(number % 7).encode() for number in range(56)]
    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(store.put, contents))
    assert names == [digest(data) for data in contents]
    assert sorted(store.digests()) == sorted(set(names))


def test_many_are_sent_and_fetched(store: Blobs) -> None:
    contents = [str(number).encode() * 10 for number in range(100)] + [b"large" * 400_000]
    put_many(store, ((digest(data), len(data), io.BytesIO(data)) for data in contents))
    names = [digest(data) for data in contents]
    assert store.missing(names) == []
    assert list(get_many(store, names)) == contents
    assert list(get_many(store, [])) == []
    with pytest.raises(NotFound):
        list(get_many(store, [*names, NOWHERE]))
    first = next(get_many(store, names))  # the rest is not asked for any more
    assert first == contents[0]


def test_many_of_which_one_is_wrong(store: Blobs) -> None:
    contents = [str(number).encode() for number in range(50)]
    items = [(digest(data), len(data), io.BytesIO(data)) for data in contents]
    items[20] = (NOWHERE, 1, io.BytesIO(b"x"))
    with pytest.raises(InvalidInput, match=f"blob {NOWHERE} has another content"):
        put_many(store, iter(items))
    assert not store.has(NOWHERE)
    assert {digest(data) for data in contents} >= set(store.digests())


def test_another_server_sees_what_one_has_put(s3_server: S3Server, tmp_path: Path) -> None:
    section = s3_server.section()
    one, other = (open_blobs(section, home=tmp_path, environ=s3_server.environ) for _ in range(2))
    assert other.missing([digest(b"x")]) == [digest(b"x")]
    one.put(b"x")
    assert other.missing([digest(b"x")]) == []


def test_prefixes_are_apart(s3_server: S3Server, tmp_path: Path) -> None:
    one, other = (
        open_blobs(s3_server.section(name), home=tmp_path, environ=s3_server.environ)
        for name in ("apart/one", "apart/other")
    )
    name = one.put(b"x")
    assert not other.has(name)
    assert list(other.digests()) == []


# ---- trouble with the store ----------------------------------------------------------------------------------------


@pytest.fixture
def stopped_s3(s3_server: S3Server) -> Iterator[Callable[[], None]]:
    """Call it to have the S3 server gone; it is back after the test."""
    yield s3_server.stop
    s3_server.stop()
    s3_server.start()


def test_an_outage_is_told_and_passes(s3_server: S3Server, stopped_s3: Callable[[], None], tmp_path: Path) -> None:
    section = s3_server.section()
    store = open_blobs(section, home=tmp_path, environ=s3_server.environ)
    kept = store.put(b"kept")
    stopped_s3()
    asks: list[Callable[[], object]] = [
        lambda: store.put(b"new"),
        lambda: store.put_stream(digest(BIG), io.BytesIO(BIG)),
        lambda: store.get(kept),
        lambda: store.size(kept),
        lambda: store.stream(kept),
        lambda: store.missing([NOWHERE]),
        lambda: list(store.digests()),
        lambda: store.delete(kept),
    ]
    for ask in asks:
        with pytest.raises(Unavailable, match="does not answer"):
            ask()
    s3_server.start()
    again = open_blobs(section, home=tmp_path, environ=s3_server.environ)
    assert again.get(kept) == b"kept"
    assert again.missing([digest(b"new"), digest(BIG)]) == [digest(b"new"), digest(BIG)]


def test_a_bucket_that_refuses_is_unavailable(s3_server: S3Server, tmp_path: Path) -> None:
    wrong = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "wrong"}
    store = open_blobs(s3_server.section(), home=tmp_path, environ=wrong)
    for ask in (lambda: store.put(b"x"), lambda: store.get(NOWHERE), lambda: store.missing([NOWHERE])):
        with pytest.raises(Unavailable, match="refuses access"):
            ask()


def test_what_was_seen_is_not_asked_for_again_for_a_while(tmp_path: Path) -> None:
    from obstore.store import MemoryStore

    now = [0.0]
    shared = MemoryStore()
    store = ObjectBlobs(shared, name="memory://", monotonic=lambda: now[0])
    name = store.put(b"x")
    ObjectBlobs(shared, name="memory://").delete(name)
    assert store.has(name)
    now[0] = 3601.0
    assert not store.has(name)


def test_credentials_are_read_from_the_variables_that_are_named(s3_server: S3Server, tmp_path: Path) -> None:
    section = s3_server.section().model_copy(
        update={"access_key_variable": "MY_KEY", "secret_key_variable": "MY_SECRET"}
    )
    environ = {"MY_KEY": s3_server.access_key, "MY_SECRET": s3_server.secret_key}
    assert open_blobs(section, home=tmp_path, environ=environ).put(b"x") == digest(b"x")


# ---- code for engines ----------------------------------------------------------------------------------------------


def a_snapshot(store: Blobs, count: int = 40) -> tuple[str, list[str]]:
    contents = [f"print({number})".encode() for number in range(count)]
    names = [store.put(data) for data in contents]
    files = [{"path": f"f{n}.py", "mode": 0o644, "sha256": name, "size": 1} for n, name in enumerate(names)]
    snapshot, missing = store_manifest(store, files)
    assert missing == []
    return snapshot, names


def test_code_is_laid_into_a_folder(store: Blobs, tmp_path: Path) -> None:
    snapshot, names = a_snapshot(store)
    folder = LocalBlobs(tmp_path / "laid")
    for _ in range(2):
        BlobCode(store).lay_in(snapshot, folder.root)
        assert sorted(folder.digests()) == sorted([snapshot, *names])
    assert missing_blobs(folder, snapshot) == []
    assert all(digest(folder.get(name)) == name for name in names)


def test_code_laid_in_by_several_at_once(store: Blobs, tmp_path: Path) -> None:
    snapshot, names = a_snapshot(store)
    start = threading.Barrier(3)

    def lay_in(_: int) -> None:
        start.wait()
        BlobCode(store).lay_in(snapshot, tmp_path / "laid")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lay_in, range(3)))
    assert sorted(LocalBlobs(tmp_path / "laid").digests()) == sorted([snapshot, *names])
    assert list((tmp_path / "laid").glob(".incoming-*")) == []


def test_code_that_lies_there_already_is_left_alone(tmp_path: Path) -> None:
    store = LocalBlobs(tmp_path / "blobs")
    snapshot, _ = a_snapshot(store, 2)
    before = {path: path.stat().st_mtime_ns for path in store.root.rglob("*")}
    BlobCode(store).lay_in(snapshot, tmp_path / "blobs" / ".." / "blobs")
    assert {path: path.stat().st_mtime_ns for path in store.root.rglob("*")} == before


def test_incomplete_code_can_never_start(store: Blobs, tmp_path: Path) -> None:
    snapshot, names = a_snapshot(store)
    store.delete(names[7])
    with pytest.raises(LaunchFailed, match=f"is incomplete: there is no blob {names[7]}"):
        BlobCode(store).lay_in(snapshot, tmp_path / "laid")
    with pytest.raises(LaunchFailed, match="is incomplete"):
        BlobCode(store).lay_in(NOWHERE, tmp_path / "laid")
    with pytest.raises(LaunchFailed, match="is not a code snapshot"):
        BlobCode(store).lay_in(store.put(b"[]"), tmp_path / "laid")


def test_code_whose_store_is_away_may_start_later(
    s3_server: S3Server, stopped_s3: Callable[[], None], tmp_path: Path
) -> None:
    store = open_blobs(s3_server.section(), home=tmp_path, environ=s3_server.environ)
    snapshot, names = a_snapshot(store, 3)
    stopped_s3()
    with pytest.raises(Unavailable):
        BlobCode(store).lay_in(snapshot, tmp_path / "laid")
    s3_server.start()
    BlobCode(store).lay_in(snapshot, tmp_path / "laid")
    assert sorted(LocalBlobs(tmp_path / "laid").digests()) == sorted([snapshot, *names])
