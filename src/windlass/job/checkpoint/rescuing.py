"""Writing to the disk what ranks have left in their node's memory, once an attempt has ended badly: `rescue`.

The memory is lost with the node, and is not for a run that is resumed by hand. Nobody changes a copy any more: all
processes of the ranks are dead, and the supervisor waits, though not for long. Loads no torch.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import windlass
from windlass.core.manifest import SaveReason
from windlass.job.checkpoint.announcing import Announcer
from windlass.job.checkpoint.disk import Disk
from windlass.job.checkpoint.folder import list_saved
from windlass.job.checkpoint.memory import MemoryCopy, NodeMemory
from windlass.job.checkpoint.retention import Keep
from windlass.job.checkpoint.saver import Order, Saver
from windlass.job.checkpoint.sums import damage_of
from windlass.job.session import Session

_START = (
    "import sys; sys.path.insert(0, sys.argv[2]); from windlass.job.checkpoint.rescuing import main; main(sys.argv[1])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How the run saves, as its first rank leaves it beside the copies. `argv` is for the supervisor, which knows
    neither checkpoints nor the Python of the ranks."""

    argv: list[str]
    folder: str
    keep: dict[str, Any]
    encode: dict[str, Any]


def terms_of(memory: NodeMemory, folder: Path, keep: Mapping[str, Any], encode: Mapping[str, Any]) -> Terms:
    root = str(Path(windlass.__file__).resolve().parents[1])
    argv = [sys.executable, "-c", _START, str(memory.folder), root]
    return Terms(argv=argv, folder=str(folder), keep=dict(keep), encode=dict(encode))


def rescue(memory: NodeMemory, terms: Terms, mine: Session) -> int | None:
    """The step that was saved; None: there is nothing that is newer than what is on the disk and whole on all ranks, or
    it could not be saved, which an alert says."""
    folder = Path(terms.folder)
    parts = newest_whole(memory)
    metadata = memory.layout(parts[0].layout) if parts else None
    newest = next((saved.step for saved in list_saved(folder) if saved.manifest.run_id == mine.run_id), -1)
    if metadata is None or parts[0].step <= newest:
        return None
    problem: str | None = None
    for copy in reversed(parts):  # the first rank's saver is the one that waits for the others
        saver = Saver(Disk.from_environ(os.environ))
        saver.use_arena(os.open(memory.arena(copy.rank, copy.slot), os.O_RDONLY | os.O_CLOEXEC), metadata)
        problem = saver.save(_order(copy, terms))["error"] or problem
    Announcer(folder, mine=mine).look()
    if problem is not None:
        text = f"step {parts[0].step}, the last one in the node's memory, could not be saved: {problem}"
        mine.alert("checkpoint-unsaved", text, parts[0].step)
        return None
    return parts[0].step


def newest_whole(memory: NodeMemory) -> list[MemoryCopy]:
    """The copies of all ranks, first to last, of the newest step that each of them has undamaged. All ranks have their
    copies here."""
    for first in sorted(memory.copies(0), key=lambda copy: copy.identity, reverse=True):
        same = [
            next((copy for copy in memory.copies(rank) if copy.identity == first.identity), None)
            for rank in range(first.world_size)
        ]
        parts = [copy for copy in same if copy is not None and damage_of(memory, copy) is None]
        if len(parts) == first.world_size:
            return parts
    return []


def _order(copy: MemoryCopy, terms: Terms) -> Order:
    # One more stays than the run wants: the state may be what made it fail, and must not cost the one before.
    keep = Keep(**terms.keep)
    return Order(
        folder=terms.folder,
        save_id=f"{copy.life}-left",
        rank=copy.rank,
        world_size=copy.world_size,
        step=copy.step,
        files=copy.files,
        run_id=copy.run_id,
        attempt=copy.attempt,
        reason=SaveReason.RESCUED,
        plan=copy.plan,
        metrics=copy.metrics,
        keep=asdict(replace(keep, last=keep.last + 1)),
        encode=terms.encode,
    )


def main(folder: str) -> None:
    memory = NodeMemory(Path(folder))
    with contextlib.suppress(OSError, ValueError, TypeError):  # terms of another version, or memory that is gone
        rescue(memory, Terms(**memory.terms()), Session(os.environ))
