"""One rank's saves: the state is copied into the arena, and the saver process is told of it. One at a time."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from windlass.core.manifest import SaveReason
from windlass.job.checkpoint.announcing import Announcer
from windlass.job.checkpoint.arena import Arena
from windlass.job.checkpoint.companion import Companion, SaverGone
from windlass.job.checkpoint.disk import Disk
from windlass.job.checkpoint.folder import saving_name
from windlass.job.checkpoint.layout import Layout, as_tensor, build_layout, pages_of, signature_of
from windlass.job.checkpoint.peers import Peers
from windlass.job.checkpoint.saver import Order, part_name
from windlass.job.checkpoint.state import RANK, TrainingState
from windlass.job.session import session


class Snapshots:
    def __init__(
        self, state: TrainingState, folder: Path, peers: Peers, keep: dict[str, Any], announcer: Announcer | None
    ) -> None:
        self._state = state
        self._folder = folder
        self._peers = peers
        self._keep = keep
        self._announcer = announcer  # the first rank's: its saver is the one that makes a checkpoint visible
        # One for all ranks and for this life of the processes: what an earlier life left is told apart by it.
        self._save_id = peers.from_first(secrets.token_hex(4))
        self._companion: Companion | None = Companion()
        self._layout: Layout | None = None
        self._arena: Arena | None = None
        self._blob_bytes = 0
        self._given: Order | None = None  # the last order
        self.has_failed = False  # the last one that was begun, as far as this rank knows

    def begin(self, step: int, reason: SaveReason, metrics: dict[str, float]) -> bool:
        """Copy the state, and have it written. False: the save before is still being written, on some rank.

        Every rank calls it. The state may change as soon as this returns.
        """
        began = time.monotonic()
        assert self._companion is not None
        if not self._companion.is_busy and not self._companion.is_alive:
            self._replace_companion("the saver process has ended")
        tensors = self._tensors()
        fits = self._layout is not None and self._layout.signature == signature_of(tensors)
        busy, changed = self._peers.largest([int(self._companion.is_busy), int(not fits)])
        if busy:
            if session().is_main:
                session().alert(
                    "checkpoint-late", "the last checkpoint is still being written: one is left out", step=step
                )
            return False
        if changed:
            self._lay_out(tensors)
        assert self._layout is not None
        assert self._arena is not None
        self._copy(self._layout.pairs(tensors, self._arena))
        self._given = self._order(step, reason, metrics)
        self.has_failed = False
        try:
            self._companion.give_order(self._given)
        except SaverGone as gone:
            self._replace_companion(str(gone))
        if session().is_main:
            session().log(step, None, {"checkpoint_stall_s": time.monotonic() - began})
        return True

    def look(self) -> None:
        """Hear how the last save went, if it is over."""
        self._hear(wait_s=0.0)

    def wait(self) -> None:
        self._hear(wait_s=None)

    def close(self, *, wait_s: float | None) -> None:
        if self._companion is not None:
            self._hear(wait_s)
            self._companion.close(wait_s=wait_s)
            self._companion = None
        if self._arena is not None:
            self._arena.close()
            self._arena = None
            self._layout = None

    def _hear(self, wait_s: float | None) -> None:
        if self._companion is not None and self._companion.is_busy:
            try:
                self._tell(self._companion.answer(wait_s))
            except SaverGone as gone:
                self._replace_companion(str(gone))

    def _replace_companion(self, why: str) -> None:
        """A saver that was killed (for its memory, say) costs a checkpoint, not the training."""
        assert self._companion is not None
        self.has_failed = True
        session().alert("checkpoint-failed", f"nothing was saved: {why}; another one is started")
        self._companion.close(wait_s=0.0)
        self._companion = Companion()
        self._layout = None  # the new one has no arena yet
        if self._given is not None:
            saving = self._folder / saving_name(self._given.step, self._given.save_id)
            if self._given.rank and saving.exists():
                # The first rank's saver would wait for our part.
                content = json.dumps({"error": why}).encode()
                with contextlib.suppress(OSError):
                    Disk().write_file(saving / part_name(self._given.rank), content)

    def _tensors(self) -> dict[str, Tensor]:
        """With what is no tensor as one more, of a size that stays."""
        tensors = self._state.tensors()
        blob = self._state.rest()
        if len(blob) > self._blob_bytes:
            self._blob_bytes = pages_of(len(blob))
        tensors[f"{RANK}{self._peers.rank}"] = as_tensor(blob, self._blob_bytes)
        return tensors

    def _lay_out(self, tensors: dict[str, Tensor]) -> None:
        assert self._companion is not None
        if self._arena is not None:
            self._arena.close()
        self._layout = build_layout(tensors, self._peers)
        on_gpu = any(tensor.device.type == "cuda" for tensor in tensors.values())
        self._arena = Arena(self._layout.arena_bytes, pinned=on_gpu)
        self._layout.prepare(self._arena)
        self._companion.give_arena(self._arena, self._layout.metadata or b"")

    @torch.no_grad()
    def _copy(self, pairs: list[tuple[Tensor, Tensor]]) -> None:
        devices = set()
        for source, target in pairs:
            target.copy_(source, non_blocking=True)
            if source.device.type == "cuda":
                devices.add(source.device)
        for device in devices:
            torch.cuda.current_stream(device).synchronize()

    def _order(self, step: int, reason: SaveReason, metrics: dict[str, float]) -> Order:
        assert self._layout is not None
        mine = session()
        return Order(
            folder=str(self._folder),
            save_id=self._save_id,
            rank=self._peers.rank,
            world_size=self._peers.world_size,
            step=step,
            files=[[file.name, file.start, file.size_bytes] for file in self._layout.files],
            run_id=mine.run_id,
            attempt=mine.attempt,
            reason=str(reason),
            plan=self._state.plan,
            metrics=metrics,
            keep=self._keep,
        )

    def _tell(self, answer: dict[str, Any] | None) -> None:
        if answer is None:
            return
        self.has_failed = answer["error"] is not None
        if self.has_failed:
            session().alert("checkpoint-failed", f"nothing was saved: {answer['error']}", step=answer["step"])
        elif session().is_main:
            session().log(
                answer["step"],
                None,
                {"checkpoint_write_s": answer["took_s"], "checkpoint_bytes": float(answer["size_bytes"])},
            )
        if self._announcer is not None:
            self._announcer.look()
