"""Artifacts in a folder of this machine, where a client has put them by itself: runs whose `artifact_uri` is a path.

Links that lead out of the folder are refused, and so is whatever lies in the server's own folder, but for what runs
have written there.
"""

from __future__ import annotations

import os
import stat
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from windlass.artifacts.paths import clean_path, file_path
from windlass.artifacts.types import Content, Entry
from windlass.blobs.local import sync_folder
from windlass.core.errors import Conflict, InvalidInput, NotFound

_PIECE_BYTES = 1 << 20


class ArtifactFolder:
    def __init__(self, root: Path, *, home: Path | None) -> None:
        """`home` is the server's own folder."""
        self._root = root
        self._home = home

    def children(self, path: str) -> list[Entry]:
        """What lies right in it, by name; nothing in what is no folder."""
        folder = self._inside(clean_path(path))
        if not folder.is_dir():
            return []
        above = clean_path(path)
        found = [_entry(item, f"{above}/{item.name}" if above else item.name) for item in os.scandir(folder)]
        return sorted(found, key=lambda entry: entry.path)

    def files_below(self, path: str) -> Iterator[Entry]:
        for entry in self.children(path):
            if not entry.is_dir:
                yield entry
            elif not (self._root / entry.path).is_symlink():  # which may lead round in a circle
                yield from self.files_below(entry.path)

    def open(self, path: str) -> Content:
        """Raises NotFound, and Conflict for a folder."""
        file = self._inside(clean_path(path))
        if file.is_dir():
            raise Conflict(f"'{path}' is a folder, not a file")
        try:
            found = file.stat()
        except OSError as error:
            raise NotFound(f"there is no artifact '{path}'") from error
        if not stat.S_ISREG(found.st_mode):  # who opened a pipe would wait for ever
            raise NotFound(f"there is no artifact '{path}': what has that name is no file")
        tag = f"{found.st_mtime_ns:x}-{found.st_size:x}-{zlib.crc32(str(file).encode()):x}"

        def read(start: int, end: int) -> Iterator[bytes]:
            return _pieces(file, start, end)

        return Content(name=file.name, size_bytes=found.st_size, tag=tag, read=read)

    def put_bytes(self, path: str, data: bytes) -> None:
        """Whole or not at all."""
        target = self._inside(file_path(path))
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".incoming-")
        except (FileExistsError, NotADirectoryError) as error:
            raise Conflict(f"'{path}' cannot lie in a file") from error
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
            self._sync_down_to(target.parent)
        except BaseException as error:
            Path(temporary).unlink(missing_ok=True)
            if isinstance(error, IsADirectoryError):
                raise Conflict(f"'{path}' is a folder") from error
            raise

    def _sync_down_to(self, folder: Path) -> None:
        """The names of all folders from the root on, which may be new."""
        root = self._root.resolve()
        while folder.is_relative_to(root):
            sync_folder(folder)
            folder = folder.parent

    def _inside(self, path: str) -> Path:
        root = self._root.resolve()
        found = (root / path).resolve()
        if not found.is_relative_to(root):
            raise InvalidInput("Invalid path: resolved path is outside the artifact directory")
        if self._home is not None:
            home = self._home.resolve()
            if found.is_relative_to(home) and not found.is_relative_to(home / "runs"):
                raise InvalidInput(f"'{self._root}' is in the folder of the server, which has no artifacts")
        return found


def _entry(item: os.DirEntry[str], path: str) -> Entry:
    try:
        is_dir, size = item.is_dir(), item.stat().st_size
    except OSError:  # a link to nothing, or gone just now
        is_dir, size = False, 0
    return Entry(path=path, is_dir=is_dir, size_bytes=None if is_dir else size)


def _pieces(path: Path, start: int, end: int) -> Iterator[bytes]:
    # Not to wait: since it was looked at, a pipe may have taken its place.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        file.seek(start)
        while start < end and (piece := file.read(min(_PIECE_BYTES, end - start))):
            start += len(piece)
            yield piece
