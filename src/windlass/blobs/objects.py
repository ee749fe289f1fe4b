"""Content-addressed blobs in an object store: `<prefix>/blobs/<first two hex digits>/<sha256>`, by way of obstore.

What is sent is hashed before its first byte leaves, so nothing wrong or half can become visible: a small blob is one
PUT that only creates, a large one a multipart upload, which appears when it is completed. Two that send the same blob
write the same bytes. No other promise of the store is relied upon.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from windlass.blobs.local import check_digest
from windlass.blobs.troubles import translated
from windlass.core.errors import NotFound, StorageFull, Unavailable

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SINGLE_PUT_BYTES = 16 << 20
_IN_MEMORY_BYTES = 4 << 20
_CHUNK_BYTES = 1 << 20
_HEADS_AT_ONCE = 64
# What was seen here is not asked for again for a while: `missing` gets whole snapshots, again and again.
_KNOWN_FOR_S = 3600.0
_KNOWN_MOST = 200_000


class ObjectBlobs:
    def __init__(
        self, store: ObjectStore, *, name: str, prefix: str = "", monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """`name` is for people: where it is. `prefix` stands before every key."""
        self.store = store
        self._name = name
        self._prefix = f"{prefix.strip('/')}/blobs/" if prefix.strip("/") else "blobs/"
        self._monotonic = monotonic
        self._known = _Known(monotonic)

    def has(self, digest: str) -> bool:
        return not self.missing([digest])

    def missing(self, digests: Iterable[str]) -> list[str]:
        asked = [digest for digest in dict.fromkeys(digests) if digest not in self._known]
        with translated(self._name):
            found = asyncio.run(self._present(asked)) if asked else set()
        self._known.add(found)
        return [digest for digest in asked if digest not in found]

    def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        if not self.has(digest):
            with translated(self._name):
                self._create(digest, data)
        return digest

    def put_stream(self, digest: str, stream: BinaryIO) -> None:
        hasher = hashlib.sha256()
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as spool:
            while chunk := stream.read(_CHUNK_BYTES):
                hasher.update(chunk)
                spool.write(chunk)
            check_digest(digest, hasher.hexdigest())
            self.send(digest, spool)  # type: ignore[arg-type]  # it is a binary file

    def send(self, digest: str, file: BinaryIO) -> None:
        """All of a file that stands at its end, and whose hash is known."""
        size = file.tell()
        file.seek(0)
        with translated(self._name):
            if size <= SINGLE_PUT_BYTES:
                self._create(digest, file.read())
            else:
                import obstore

                obstore.put(self.store, self._key(digest), file, use_multipart=True)
                self._known.add([digest])

    def intake(self) -> ObjectIntake:
        return ObjectIntake(self)

    def clear_intakes(self, before: float) -> None:
        """Nothing is left of them: their files have no names."""

    def room(self, name: str) -> ObjectBlobs:
        return ObjectBlobs(
            self.store,
            name=f"{self._name.rstrip('/')}/{name}",
            prefix=f"{self._prefix.removesuffix('blobs/')}{name}",
            monotonic=self._monotonic,
        )

    def get(self, digest: str) -> bytes:
        with translated(self._name, f"blob {digest}"):
            import obstore

            return obstore.get(self.store, self._key(digest)).bytes().to_bytes()

    def stream(self, digest: str, *, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        import obstore

        with translated(self._name, f"blob {digest}"):
            size: int = obstore.head(self.store, self._key(digest))["size"]
            last = size if end is None else min(end, size)
            if start >= last:
                return iter(())
            options: Any = {"range": (start, last)}
            answer = obstore.get(self.store, self._key(digest), options=options)
        return self._pieces(digest, answer)

    def size(self, digest: str) -> int:
        import obstore

        with translated(self._name, f"blob {digest}"):
            return int(obstore.head(self.store, self._key(digest))["size"])

    def delete(self, digest: str) -> None:
        import obstore

        self._known.discard(digest)
        with contextlib.suppress(NotFound), translated(self._name, f"blob {digest}"):
            obstore.delete(self.store, self._key(digest))

    def digests(self) -> Iterator[str]:
        import obstore

        with translated(self._name):
            for page in obstore.list(self.store, prefix=self._prefix):
                yield from (item["path"].rpartition("/")[2] for item in page)

    def describe(self) -> str:
        return self._name

    def _key(self, digest: str) -> str:
        return f"{self._prefix}{digest[:2]}/{digest}"

    def _create(self, digest: str, data: bytes) -> None:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with contextlib.suppress(AlreadyExistsError):  # the same content, then
            obstore.put(self.store, self._key(digest), data, mode="create", use_multipart=False)
        self._known.add([digest])

    def _pieces(self, digest: str, answer: Any) -> Iterator[bytes]:
        with translated(self._name, f"blob {digest}"):
            for piece in answer.stream(min_chunk_size=_CHUNK_BYTES):
                yield bytes(piece)

    async def _present(self, digests: Sequence[str]) -> set[str]:
        import obstore
        from obstore.exceptions import NotFoundError

        found: set[str] = set()
        waiting = iter(digests)

        async def ask() -> None:
            for digest in waiting:
                # Stores differ in which of the two they raise for what is not there.
                with contextlib.suppress(NotFoundError, FileNotFoundError):
                    await obstore.head_async(self.store, self._key(digest))
                    found.add(digest)

        await asyncio.gather(*(ask() for _ in range(min(_HEADS_AT_ONCE, len(digests)))))
        return found


class ObjectIntake:
    """What a bucket gets is spooled first: its key is its hash."""

    def __init__(self, blobs: ObjectBlobs) -> None:
        self._blobs = blobs
        self._hasher = hashlib.sha256()
        self.size_bytes = 0
        self._spool = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115  # until `close`

    def write(self, data: bytes) -> None:
        self._hasher.update(data)
        with _spooling():
            self._spool.write(data)
        self.size_bytes += len(data)

    def seal(self) -> str:
        return self._hasher.hexdigest()

    def place(self) -> None:
        self._blobs.send(self.seal(), self._spool)  # type: ignore[arg-type]  # it is a binary file

    def close(self) -> None:
        self._spool.close()


class _Known:
    """Blobs that were seen in the store not long ago. Bounded, for any number of threads."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._until: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, digest: str) -> bool:
        until = self._until.get(digest)
        return until is not None and self._monotonic() < until

    def add(self, digests: Iterable[str]) -> None:
        until = self._monotonic() + _KNOWN_FOR_S
        with self._lock:
            for digest in digests:
                self._until[digest] = until
                self._until.move_to_end(digest)
            while len(self._until) > _KNOWN_MOST:
                self._until.popitem(last=False)

    def discard(self, digest: str) -> None:
        with self._lock:
            self._until.pop(digest, None)


@contextlib.contextmanager
def _spooling() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        folder = tempfile.gettempdir()
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"{folder} has no room left", hint="free some disk space, or set TMPDIR") from error
        raise Unavailable(f"{folder} cannot be written: {error.strerror}", hint="trying again may help") from error
