"""Which ranks share a folder: found out by trying, since names of hosts and paths tell nothing sure of it."""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass
from pathlib import Path

from windlass.blobs.stored import Stored
from windlass.core.manifest import folder_name
from windlass.job.checkpoint.folder import PROBE, part_folder_name
from windlass.job.checkpoint.peers import Peers


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """`ranks`: those that see the same folder as this one. `number` of `count` such folders, the first rank's first."""

    folder: Path
    rank: int
    ranks: tuple[int, ...]
    number: int
    count: int

    @property
    def is_lead(self) -> bool:
        return self.rank == self.ranks[0]

    @property
    def place(self) -> int:
        return self.ranks.index(self.rank)

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def share_one_folder(self) -> bool:
        return self.count == 1

    def near(self, stored: Stored) -> list[Path]:
        """Folders here that may hold some of that checkpoint's files."""
        names = (part_folder_name(stored.name), folder_name(stored.manifest.step))
        return [self.folder / name for name in names if not self.share_one_folder]


def find_neighbours(folder: Path, peers: Peers) -> Neighbours:
    """Every rank calls it."""
    everyone = tuple(range(peers.world_size))
    alone = Neighbours(folder=folder, rank=peers.rank, ranks=everyone, number=0, count=1)
    if peers.world_size == 1:
        return alone
    token = peers.from_first(secrets.token_hex(8))
    mine = _probe(folder, token, peers.rank)
    mine.touch()
    try:
        peers.gather(None)  # all are there
        sees_first = _probe(folder, token, 0).exists()
        if all(peers.gather(sees_first)):
            return alone
        seen = tuple(rank for rank in everyone if _probe(folder, token, rank).exists())
        # By the first that they see: the same for all of one folder.
        groups = peers.gather(seen[0])
    finally:
        with contextlib.suppress(OSError):
            peers.gather(None)
            mine.unlink()
    firsts = sorted(set(groups))
    first = groups[peers.rank]
    ranks = tuple(rank for rank in everyone if groups[rank] == first)
    return Neighbours(folder=folder, rank=peers.rank, ranks=ranks, number=firsts.index(first), count=len(firsts))


def _probe(folder: Path, token: str, rank: int) -> Path:
    return folder / f"{PROBE}{token}-{rank}"
