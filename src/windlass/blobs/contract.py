"""What every store of blobs offers. A blob is named by the sha256 of its content, is there whole or not at all, and
never changes; so every method is safe to repeat, and to call from any number of threads and servers at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO, Protocol


class Intake(Protocol):
    """A blob on its way in, whose name is known with its last byte. For one thread at a time."""

    @property
    def size_bytes(self) -> int:
        """Of what has been written."""
        ...

    def write(self, data: bytes) -> None: ...

    def seal(self) -> str:
        """Its digest: nothing more comes. Where the store is a disk, it is on it now; nobody can see it yet."""
        ...

    def place(self) -> None:
        """After `seal`: make it a blob, which survives whatever comes. Call it once."""
        ...

    def close(self) -> None:
        """What was not placed is gone. Safe to repeat."""
        ...


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

    def intake(self) -> Intake:
        """For a blob whose digest nobody knows yet. The caller closes it."""
        ...

    def clear_intakes(self, before: float) -> None:
        """Remove what is left of intakes whose process died, and that nobody has written to since `before`."""
        ...

    def room(self, name: str) -> Blobs:
        """A store within this one, whose blobs are counted apart: what is deleted there is missed by nobody here."""
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
