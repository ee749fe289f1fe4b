"""Copies of ranks' states in a node's memory, which outlive the ranks: `NodeMemory`, the folder of them.

rank-3-0.arena     the bytes: an image of the files that a save to disk would write
rank-3-0.json      that it is complete, and of what; not there while the bytes are being changed
rank-3-0.sum       the sums of its files, once they are made; see `sums`
rank-3-0.saving    a saver is reading it, perhaps one that has outlived its rank: not to be written to
terms.json         how the run saves: for who writes a copy to the disk when all ranks are dead; see `rescuing`
<digest>.layout    DCP's own metadata, which says where in the files each tensor is
block-1f2e3d4c/    the same for another `job.checkpoints` of the run, which has another folder on the disk

Loads no torch.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FOLDER = "WINDLASS_MEMORY_DIR"
_OWNER = "owner.json"  # the supervisor's
_TERMS = "terms.json"
_BLOCK = "block-"
_VERSION = 1
MOST_SLOTS = 3  # one that is being written to the disk, and two in turns
_PART = 0.5  # of the memory that is left: training may come to need more


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCopy:
    """What is said of a complete copy. `life` is that of the processes that made it: with the step, its identity."""

    rank: int
    slot: int
    life: str
    step: int
    run_id: str | None
    attempt: int
    world_size: int
    plan: str
    layout: str  # the digest of all ranks' layout
    size_bytes: int
    files: list[list[Any]]  # name, start, size
    created_at: float
    metrics: dict[str, float]
    version: int = _VERSION

    @property
    def identity(self) -> tuple[int, str, str]:
        return self.step, self.life, self.layout


class NodeMemory:
    def __init__(self, folder: Path, *, local_ranks: int = 1) -> None:
        self.folder = folder
        self._local_ranks = local_ranks

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], block: str = "") -> NodeMemory | None:
        """`block`: `block_of` the folder on the disk."""
        folder = environ.get(FOLDER)
        if not folder or not os.path.isdir(folder):
            return None
        path = Path(folder, block)
        try:
            path.mkdir(mode=0o700, exist_ok=True)
        except OSError:
            return None  # it is full
        return cls(path, local_ranks=int(environ.get("LOCAL_WORLD_SIZE") or 1))

    def arena(self, rank: int, slot: int) -> Path:
        return self.folder / f"rank-{rank}-{slot}.arena"

    # ---- what is there ---------------------------------------------------------------------------------------------

    def copies(self, rank: int) -> list[MemoryCopy]:
        """Those of the rank that are complete."""
        found = []
        for slot in range(MOST_SLOTS):
            try:
                copy = MemoryCopy(**json.loads(self._record(rank, slot).read_bytes()))
                size = self.arena(rank, slot).stat().st_size
            except (OSError, ValueError, TypeError):
                continue  # none, or another version's
            if (copy.version, copy.rank, copy.slot, copy.size_bytes) == (_VERSION, rank, slot, size):
                found.append(copy)
        return found

    def read(self, copy: MemoryCopy) -> dict[str, memoryview]:
        """Its files, by name: views of the pages themselves."""
        with self.arena(copy.rank, copy.slot).open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ)
        whole = memoryview(mapped)
        return {name: whole[start : start + size] for name, start, size in copy.files}

    def sums(self, copy: MemoryCopy) -> dict[str, int] | None:
        """Of its files, by name; None: they were not made yet."""
        try:
            found = json.loads(self._sums(copy).read_bytes())
            return dict(found["sums"]) if found["created_at"] == copy.created_at else None  # else of one before it
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def layout(self, digest: str) -> bytes | None:
        try:
            content = (self.folder / f"{digest}.layout").read_bytes()
        except OSError:
            return None
        return content if digest_of(content) == digest else None

    def terms(self) -> dict[str, Any]:
        """Raises OSError, ValueError."""
        return dict(json.loads((self.folder / _TERMS).read_bytes()))

    def is_saving(self, rank: int, slot: int) -> bool:
        return self._saving(rank, slot).exists()

    # ---- changing it -----------------------------------------------------------------------------------------------

    def drop(self, rank: int, slot: int) -> None:
        """Before the first byte of the copy is changed."""
        self._record(rank, slot).unlink(missing_ok=True)

    def commit(self, copy: MemoryCopy) -> None:
        """After the last one. A rename, so that it is there whole or not at all; memory needs no sync."""
        path = self._record(copy.rank, copy.slot)
        draft = path.with_suffix(".tmp")
        draft.write_text(json.dumps(asdict(copy)))
        draft.rename(path)

    def keep_sums(self, copy: MemoryCopy, sums: Mapping[str, int]) -> None:
        path = self._sums(copy)
        draft = path.with_suffix(f".{os.getpid()}.tmp")  # a saver that has outlived its rank may be at it as well
        draft.write_text(json.dumps({"created_at": copy.created_at, "sums": sums}))
        draft.rename(path)

    def keep_layout(self, content: bytes) -> None:
        """Once a layout; those of earlier ones go when no copy has them."""
        path = self.folder / f"{digest_of(content)}.layout"
        if not path.exists():
            draft = path.with_suffix(".tmp")
            draft.write_bytes(content)
            draft.rename(path)

    def keep_terms(self, terms: Mapping[str, Any]) -> None:
        draft = self.folder / f"{_TERMS}.tmp"
        draft.write_text(json.dumps(terms))
        draft.rename(self.folder / _TERMS)

    def drop_layouts(self, *, but: set[str]) -> None:
        for path in self.folder.glob("*.layout"):
            if path.stem not in but:
                path.unlink(missing_ok=True)

    def begin_saving(self, rank: int, slot: int) -> None:
        self._saving(rank, slot).touch()

    def end_saving(self, rank: int, slot: int) -> None:
        self._saving(rank, slot).unlink(missing_ok=True)

    def discard(self, rank: int, slot: int) -> None:
        """The file itself: whoever reads it keeps its pages, and a new one takes its name."""
        self.drop(rank, slot)
        self.arena(rank, slot).unlink(missing_ok=True)
        self._record(rank, slot).with_suffix(".sum").unlink(missing_ok=True)
        self.end_saving(rank, slot)

    # ---- room ------------------------------------------------------------------------------------------------------

    def slots_for(self, size_bytes: int, *, rank: int) -> int:
        """How many copies of this size each rank of the node may have here; under two there is no use in it."""
        own = 0
        for slot in range(MOST_SLOTS):
            try:
                own += self.arena(rank, slot).stat().st_size
            except OSError:
                continue
        there = os.statvfs(self.folder)
        free = min(there.f_bavail * there.f_frsize, _available_bytes()) + own * self._local_ranks
        limit = self._limit_bytes()
        used = _numbers("/proc/self/status").get("VmRSS:", 0) * 1024 * self._local_ranks
        return decide_slots(size_bytes * self._local_ranks, free_bytes=free, left_bytes=limit - used if limit else None)

    def _limit_bytes(self) -> int:
        run = self.folder.parent if self.folder.name.startswith(_BLOCK) else self.folder
        try:
            return int(json.loads((run / _OWNER).read_bytes())["limit_bytes"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def _record(self, rank: int, slot: int) -> Path:
        return self.folder / f"rank-{rank}-{slot}.json"

    def _sums(self, copy: MemoryCopy) -> Path:
        return self._record(copy.rank, copy.slot).with_suffix(".sum")

    def _saving(self, rank: int, slot: int) -> Path:
        return self.folder / f"rank-{rank}-{slot}.saving"


def block_of(folder: Path, own: Path) -> str:
    """Where copies are kept of what is saved in `folder`; "": at the top, for the run's own folder. What is inside that
    is known by its place there, for the next attempt may have the run's folder elsewhere."""
    if folder == own:
        return ""
    place = folder.relative_to(own) if folder.is_relative_to(own) else folder
    return _BLOCK + digest_of(os.fsencode(place))


def decide_slots(size_bytes: int, *, free_bytes: int, left_bytes: int | None) -> int:
    """`size_bytes`: of one copy of each of the node's ranks. `left_bytes`: of what the run may use there; None: all."""
    budget = free_bytes if left_bytes is None else min(free_bytes, left_bytes)
    return max(0, min(MOST_SLOTS, int(budget * _PART // max(size_bytes, 1))))


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _available_bytes() -> int:
    """Of the machine, and of the control group where that has less."""
    available = _numbers("/proc/meminfo").get("MemAvailable:", 0) * 1024
    for folder, most, used, cached in (
        ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            left = int(Path(folder, most).read_text()) - int(Path(folder, used).read_text())
        except (OSError, ValueError):
            continue  # no such control group, or "max"
        available = min(available, max(left + _numbers(f"{folder}/memory.stat").get(cached, 0), 0))
    return available


def _numbers(path: str) -> dict[str, int]:
    """A file of lines with a name and a number each."""
    try:
        lines = [line.split() for line in Path(path).read_text().splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}
