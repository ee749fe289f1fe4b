"""Every system call by which a save changes the disk, and dying on purpose at each of them.

`WINDLASS_FAULT_DISK=N:before` (or `:after`) kills this process with SIGKILL right before (or after) its N-th change.
The crash tests sweep N; nothing else sets it. Standard library only: the saver process loads no torch.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from windlass.core.deaths import Deaths

VARIABLE = "WINDLASS_FAULT_DISK"
BLOCK = 4096  # what direct writes are aligned to


class Disk:
    def __init__(self, deaths: Deaths | None = None) -> None:
        self._deaths = deaths or Deaths({}, VARIABLE)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Disk:
        return cls(Deaths(environ, VARIABLE))

    def make_dir(self, path: Path) -> None:
        self._deaths.at(lambda: path.mkdir(parents=True, exist_ok=True))

    def create(self, path: Path, *, direct: bool = False) -> int:
        """A new file to write; with `direct` past the page cache, where the file system has that."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        if direct:
            try:
                return self._deaths.at(lambda: os.open(path, flags | os.O_DIRECT, 0o644))
            except OSError:
                pass  # tmpfs and some network file systems refuse; if it is something else, so does the next line
        return self._deaths.at(lambda: os.open(path, flags, 0o644))

    def reserve(self, fd: int, size: int) -> None:
        """Room for the whole file, so that a full disk is known before anything is written."""
        try:
            self._deaths.at(lambda: os.posix_fallocate(fd, 0, size))
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise

    def write(self, fd: int, data: memoryview, offset: int) -> None:
        while data:
            # Bound now: the loop goes on before a lambda would look.
            written = self._deaths.at(lambda data=data, offset=offset: os.pwrite(fd, data, offset))  # type: ignore[misc]
            data, offset = data[written:], offset + written

    def sync(self, fd: int) -> None:
        self._deaths.at(lambda: os.fsync(fd))

    def sync_dir(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.sync(fd)
        finally:
            os.close(fd)

    def sync_dirs(self, path: Path) -> None:
        """A folder and all folders in it."""
        for folder, _, _ in os.walk(path, topdown=False):
            self.sync_dir(Path(folder))

    def write_file(self, path: Path, content: bytes) -> None:
        """A small file, whole or not there."""
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
        fd = self.create(temporary)
        try:
            self.write(fd, memoryview(content), 0)
            self.sync(fd)
        finally:
            os.close(fd)
        self.rename(temporary, path)

    def rename(self, path: Path, to: Path) -> None:
        self._deaths.at(lambda: os.rename(path, to))

    def link(self, path: Path, to: Path) -> None:
        self._deaths.at(lambda: os.link(path, to))

    def remove(self, path: Path) -> None:
        self._deaths.at(lambda: path.unlink(missing_ok=True))

    def remove_dir(self, path: Path) -> None:
        """With all that is in it. A folder that is gone already, or is going by another hand, is fine."""
        try:
            for entry in list(path.iterdir()):
                if entry.is_dir() and not entry.is_symlink():
                    self.remove_dir(entry)
                else:
                    self.remove(entry)
            self._deaths.at(path.rmdir)
        except FileNotFoundError:
            pass


_NOT_SUPPORTED = frozenset((22, 38, 95))  # EINVAL, ENOSYS, EOPNOTSUPP
