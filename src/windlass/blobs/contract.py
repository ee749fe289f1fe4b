"""What every store of blobs offers. A blob is named by the sha256 of its content, is there whole or not at all, and
never changes; so every method is safe to repeat, and to call from any number of threads and servers at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO, Protocol


class Blobs(Protocol):
    """Every method raises Unavailable while the store is away or refuses, and StorageFull when it has no room."""

    def has(self, digest: str) -> bool: ...

    def missing(self, digests: Iterable[str]) -> list[str]:
        """Those that are not here, each once. Quick for thousands of them."""
        ...

    def put(self, data: bytes) -> str:
        """Its digest."""
        ...

    def put_stream(self, digest: str, stream: BinaryIO) -> None:
        """Store what `stream` holds under `digest`; InvalidInput if that is not its hash. Never all in memory."""
        ...

    def get(self, digest: str) -> bytes:
        """Raises NotFound."""
        ...

    def stream(self, digest: str, *, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes from `start` to before `end`, in pieces. Raises NotFound at once, not with the first piece."""
        ...

    def size(self, digest: str) -> int:
        """Bytes. Raises NotFound."""
        ...

    def delete(self, digest: str) -> None:
        """Nothing happens if it is not there. The caller knows that nobody needs it, and that nobody sent it lately:
        a store may remember for up to an hour that it has a blob."""
        ...

    def digests(self) -> Iterator[str]:
        """Of all blobs, in no particular order."""
        ...

    def describe(self) -> str:
        """Where it is, without secrets."""
        ...
