"""Content-addressed blobs in a local folder: `<root>/<first two hex digits>/<sha256>`. A blob is there whole or not at
all, and never changes.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from windlass.core.errors import InvalidInput, NotFound

_CHUNK_BYTES = 1 << 20


class LocalBlobs:
    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

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
        """Store what `stream` holds under `digest`; refuse it if that is not its hash."""
        self._write(digest, iter(lambda: stream.read(_CHUNK_BYTES), b""))

    def get(self, digest: str) -> bytes:
        try:
            return self.path(digest).read_bytes()
        except FileNotFoundError as error:
            raise NotFound(f"there is no blob {digest}") from error

    def _write(self, digest: str, chunks: Iterable[bytes]) -> None:
        target = self.path(digest)
        target.parent.mkdir(exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=self.root, prefix=".incoming-")
        try:
            hasher = hashlib.sha256()
            with os.fdopen(handle, "wb") as file:
                for chunk in chunks:
                    hasher.update(chunk)
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            if hasher.hexdigest() != digest:
                raise InvalidInput(f"blob {digest} has another content: its sha256 is {hasher.hexdigest()}")
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
