"""What artifacts are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    path: str
    digest: str
    size_bytes: int
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Of a listing. `name` is the last part of `path`; folders have neither size nor digest."""

    path: str
    is_dir: bool
    size_bytes: int | None = None
    digest: str | None = None
    created_at: float | None = None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A file that can be read, wherever it is kept. `read(start, end)` gives pieces; they are of one version."""

    name: str
    size_bytes: int
    tag: str  # changes with the content
    read: Callable[[int, int], Iterator[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    number: int
    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A file that comes in parts, each of which stays when the others fail."""

    id: str
    path: str
    created_at: float
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """How long what nobody names is kept. Blobs must outlast the longest download, the longest backup, and an hour in
    which servers may remember that a bucket has them."""

    blobs_s: float = 86_400.0
    uploads_s: float = 7 * 86_400.0

    def __post_init__(self) -> None:
        if self.blobs_s < 3_600 or self.uploads_s < 3_600:
            raise ValueError("what is on its way needs an hour at least")

    def blobs_before(self, now: float) -> float:
        """Blobs that nobody has named since then may go."""
        return now - self.blobs_s

    def uploads_before(self, now: float) -> float:
        """Uploads that got no part since then are given up."""
        return now - self.uploads_s
