"""One rank's saves to disk: orders for its saver process, and what becomes of them. One at a time."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from windlass.job.checkpoint.announcing import Announcer
from windlass.job.checkpoint.arena import Arena
from windlass.job.checkpoint.companion import Companion, SaverGone
from windlass.job.checkpoint.disk import Disk
from windlass.job.checkpoint.folder import saving_name
from windlass.job.checkpoint.saver import Order, part_name
from windlass.job.session import session


class Saving:
    def __init__(self, announcer: Announcer | None, *, memory: Path | None = None, rank: int = 0) -> None:
        """`memory`: the folder of the copies of that rank, which the saver sums."""
        self._announcer = announcer  # the first rank's: its saver is the one that makes a checkpoint visible
        self._memory, self._rank = memory, rank
        self._companion = Companion(memory, rank)
        self._given: Order | None = None  # the last order
        self.has_failed = False  # the last one that was begun, as far as this rank knows
        self.is_full = False  # for there is no room on the disk
        self.knows_arenas = True  # False: the saver is a new one, and has to be given all of them again

    @property
    def is_busy(self) -> bool:
        return self._companion.is_busy

    def check(self) -> None:
        """Replace a saver that has ended while it had nothing to do: what it was given before is saved, or has failed
        already."""
        if not self._companion.is_busy and not self._companion.is_alive:
            text = "the saver process has ended while it had nothing to do, so no save is lost; another one is started"
            session().alert("checkpoint-saver", text)
            self._renew()

    def give_arena(self, arena: Arena, metadata: bytes, number: int) -> None:
        try:
            self._companion.give_arena(arena, metadata, number)
        except SaverGone as gone:
            self._replace(str(gone))

    def give(self, order: Order) -> None:
        self._given = order
        self.has_failed = self.is_full = False
        try:
            self._companion.give_order(order)
        except SaverGone as gone:
            self._replace(str(gone))

    def hear(self, wait_s: float | None) -> bool:
        """How the save went. True: it is over, within that time (None: however long)."""
        if not self._companion.is_busy:
            return False
        try:
            self._tell(self._companion.answer(wait_s))
        except SaverGone as gone:
            self._replace(str(gone))
        return not self._companion.is_busy

    def close(self, *, wait_s: float | None) -> None:
        self.hear(wait_s)
        self._companion.close(wait_s=wait_s)

    def _replace(self, why: str) -> None:
        """A saver that was killed (for its memory, say) costs a checkpoint, not the training."""
        self.has_failed = True
        session().alert("checkpoint-failed", f"nothing was saved: {why}; another one is started")
        self._renew()
        if self._given is not None:
            saving = Path(self._given.folder) / saving_name(self._given.step, self._given.save_id)
            if self._given.rank and saving.exists():
                # The first rank's saver would wait for our part.
                content = json.dumps({"error": why}).encode()
                with contextlib.suppress(OSError):
                    Disk().write_file(saving / part_name(self._given.rank), content)

    def _renew(self) -> None:
        self._companion.close(wait_s=0.0)
        self._companion = Companion(self._memory, self._rank)
        self.knows_arenas = False

    def _tell(self, answer: dict[str, Any] | None) -> None:
        if answer is None:
            return
        self.has_failed = answer["error"] is not None
        self.is_full = bool(answer.get("is_full"))
        if self.has_failed and self._given is not None and self._given.is_lead:  # who knows of the others as well
            session().alert("checkpoint-failed", f"nothing was saved: {answer['error']}", step=answer["step"])
        if not self.has_failed and session().is_main:
            took = {"checkpoint_write_s": answer["took_s"], "checkpoint_bytes": float(answer["size_bytes"])}
            session().note_metrics(answer["step"], took)
        if self._announcer is not None:
            self._announcer.look()
