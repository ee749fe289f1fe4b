"""Content-addressed blobs in a local folder: `<root>/<first two hex digits>/<sha256>`."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from windlass.blobs.writeback import begin_writing
from windlass.core.errors import InvalidInput, NotFound, StorageFull, Unavailable

_CHUNK_BYTES = 1 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")
_INCOMING = ".incoming-"
_AHEAD_BYTES = 8 << 20


class LocalBlobs:
    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self._on_disk: set[str] = set()  # folders of blobs, as far as we have made sure of them

    def path(self, digest: str) -> Path:
        return self.root / digest[:2] / digest

    def has(self, digest: str) -> bool:
        return self.path(digest).exists()

    def missing(self, digests: Iterable[str]) -> list[str]:
        return [digest for digest in dict.fromkeys(digests) if not self.has(digest)]

    def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        if not self.has(digest):
            self._write(digest, [data])
        return digest

    def put_stream(self, digest: str, stream: BinaryIO) -> None:
        self._write(digest, iter(lambda: stream.read(_CHUNK_BYTES), b""))

    def put_pieces(self, digest: str, pieces: Iterable[bytes]) -> None:
        self._write(digest, pieces)

    def intake(self) -> LocalIntake:
        return LocalIntake(self)

    def clear_intakes(self, before: float) -> None:
        for path in self.root.glob(f"{_INCOMING}*"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    path.unlink()

    def room(self, name: str) -> LocalBlobs:
        return LocalBlobs(self.root / name)

    def get(self, digest: str) -> bytes:
        with _found(digest):
            return self.path(digest).read_bytes()

    def stream(self, digest: str, *, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        with _found(digest):
            file = self.path(digest).open("rb")
        return _pieces(file, start, end)

    def size(self, digest: str) -> int:
        with _found(digest):
            return self.path(digest).stat().st_size

    def delete(self, digest: str) -> None:
        self.path(digest).unlink(missing_ok=True)

    def digests(self) -> Iterator[str]:
        for folder in self.root.iterdir():
            if len(folder.name) == 2 and folder.is_dir():
                yield from (name for name in os.listdir(folder) if _DIGEST.fullmatch(name))

    def describe(self) -> str:
        return f"file://{self.root}"

    def _write(self, digest: str, chunks: Iterable[bytes]) -> None:
        with _room(self.root):
            handle, temporary = tempfile.mkstemp(dir=self.root, prefix=_INCOMING)
        try:
            hasher = hashlib.sha256()
            with os.fdopen(handle, "wb") as file:
                for chunk in chunks:
                    hasher.update(chunk)
                    with _room(self.root):
                        file.write(chunk)
                with _room(self.root):
                    file.flush()
                    os.fsync(file.fileno())
            check_digest(digest, hasher.hexdigest())
            with _room(self.root):
                self._place(Path(temporary), digest)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def _place(self, temporary: Path, digest: str) -> None:
        """When this returns its name is on the disk, as its bytes are already."""
        folder = self.path(digest).parent
        folder.mkdir(exist_ok=True)
        os.replace(temporary, self.path(digest))
        sync_folder(folder)
        if folder.name not in self._on_disk:  # whoever made it
            sync_folder(self.root)
            self._on_disk.add(folder.name)


class LocalIntake:
    """A file beside the blobs, hashed as it is written, that is renamed to its place."""

    def __init__(self, blobs: LocalBlobs) -> None:
        self._blobs = blobs
        self._hasher = hashlib.sha256()
        self.size_bytes = 0
        self._on_its_way = 0  # to the disk
        self._digest: str | None = None
        with _room(blobs.root):
            handle, temporary = tempfile.mkstemp(dir=blobs.root, prefix=_INCOMING)
        self._file = os.fdopen(handle, "wb", buffering=0)
        self._temporary: Path | None = Path(temporary)

    def write(self, data: bytes) -> None:
        self._hasher.update(data)
        with _room(self._blobs.root):
            written = 0
            while written < len(data):  # a disk that fills up takes a part
                written += self._file.write(memoryview(data)[written:])
        self.size_bytes += len(data)
        if self.size_bytes - self._on_its_way >= _AHEAD_BYTES:
            begin_writing(self._file.fileno(), self._on_its_way, self.size_bytes)
            self._on_its_way = self.size_bytes

    def seal(self) -> str:
        if self._digest is None:
            with _room(self._blobs.root):
                os.fsync(self._file.fileno())
            self._digest = self._hasher.hexdigest()
        return self._digest

    def place(self) -> None:
        assert self._digest is not None, "it is sealed first"
        assert self._temporary is not None, "it is placed once"
        with _room(self._blobs.root):
            self._blobs._place(self._temporary, self._digest)
        self._temporary = None

    def close(self) -> None:
        self._file.close()
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)
            self._temporary = None


def sync_folder(folder: Path) -> None:
    """A file's name is on disk when its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_digest(wanted: str, found: str) -> None:
    if wanted != found:
        raise InvalidInput(f"blob {wanted} has another content: its sha256 is {found}")


def _pieces(file: BinaryIO, start: int, end: int | None) -> Iterator[bytes]:
    with file:
        file.seek(start)
        left = None if end is None else end - start
        while left is None or left > 0:
            piece = file.read(_CHUNK_BYTES if left is None else min(left, _CHUNK_BYTES))
            if not piece:
                return
            left = None if left is None else left - len(piece)
            yield piece


@contextlib.contextmanager
def _found(digest: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"there is no blob {digest}") from error


@contextlib.contextmanager
def _room(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"{root} has no room left", hint="free some disk space") from error
        raise Unavailable(f"{root} cannot be written: {error.strerror}", hint="trying again may help") from error
