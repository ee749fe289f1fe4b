"""One rank's copies of the state: taken into an arena, on record in the node's memory, and written from there.

Ranks agree after each copy that all of them have it, before the next one may take the place of an older one.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from windlass.core.manifest import SaveReason
from windlass.job.checkpoint.announcing import Announcer
from windlass.job.checkpoint.copying import Copier, Copy
from windlass.job.checkpoint.interval import MemoryPace
from windlass.job.checkpoint.layout import Layout, Move, build_layout, identity_of, pages_of, signature_of
from windlass.job.checkpoint.memory import MemoryCopy, NodeMemory
from windlass.job.checkpoint.peers import Exchange, Peers
from windlass.job.checkpoint.rescuing import terms_of
from windlass.job.checkpoint.saver import Order
from windlass.job.checkpoint.saving import Saving
from windlass.job.checkpoint.slots import Slot, Slots
from windlass.job.checkpoint.state import OPTIMIZER, RANK, TrainingState
from windlass.job.session import session


@dataclass(slots=True, kw_only=True)
class _Taken:
    """A copy that was begun, and what is to follow when it is complete."""

    step: int
    metrics: dict[str, float]
    slot: Slot
    is_first: bool  # into this arena: that takes longer than those to come
    copy: Copy
    reason: SaveReason | None  # of a save to disk; None: for the node's memory alone
    spent_s: float  # that training has waited for it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Route:
    """How the state gets into one arena; good for the same tensors. Made once: there may be thousands of them."""

    identity: list[tuple[int, int]]
    tensors: dict[str, Tensor]  # held, so that no other can have their identity
    moves: list[Move]
    late: frozenset[str]  # none but an optimizer changes these


class Snapshots:
    """`restored`: the copy in memory that all ranks went on from; it stays until there is a newer one."""

    def __init__(
        self,
        state: TrainingState,
        folder: Path,
        peers: Peers,
        keep: dict[str, Any],
        announcer: Announcer | None,
        *,
        memory: NodeMemory | None = None,
        restored: MemoryCopy | None = None,
        pace: MemoryPace | None = None,
        extras: dict[str, Any] | None = None,
        overlaps: bool = False,
    ) -> None:
        self._state = state
        self._folder = folder
        self._peers = peers
        self._keep = keep
        self._extras = extras or {}  # what else savers are told: `Order`
        # One for all ranks and for this life of the processes: what an earlier life left is told apart by it.
        self._life = peers.from_first(secrets.token_hex(4))
        self._saves = 0  # that were begun, on all ranks alike
        self._copier = Copier(state.optimizer, overlaps=overlaps)
        self._memory = memory
        self.pace = pace or MemoryPace("off")
        (lacking,) = peers.largest([int(memory is None)])
        if lacking:
            self.pace.is_off = True  # a copy is of use if all ranks have one
        self._saving = Saving(
            announcer, memory=memory.folder if memory is not None and not self.pace.is_off else None, rank=peers.rank
        )
        self._slots = Slots(memory, peers.rank, restored)
        self._layout: Layout | None = None
        self._routes: dict[int, _Route] = {}  # by slot
        self._identity: list[tuple[int, int]] = []  # of the tensors that were looked at last
        self._blob = torch.zeros(0, dtype=torch.uint8)  # what is no tensor, as one of a size that stays
        self._taken: _Taken | None = None  # while the device copies it
        self._exchange: Exchange | None = None  # begun after a copy, heeded before the next
        self._must_lay_out = True  # some rank's state has another structure than before
        self._copied_step, self._gap = -1, 1
        self._is_closed = False

    def agree_on_failure(self) -> tuple[bool, bool]:
        """Whether the last save has failed on some rank, and whether for a full disk. Every rank calls it."""
        failed, full = self._peers.largest([int(self._saving.has_failed), int(self._saving.is_full)])
        return bool(failed), bool(full)

    def begin(self, step: int, reason: SaveReason, metrics: dict[str, float]) -> bool:
        """Copy the state, and have it written. False: the save before is still being written, on some rank.

        Every rank calls it. The state may change as soon as this returns.
        """
        self._heed()
        began = time.monotonic()
        self._saving.check()
        tensors = self._tensors()
        size_bytes = sum(tensor.nbytes for tensor in tensors.values())
        may_overlap = reason is SaveReason.INTERVAL and self._copier.can_overlap(size_bytes)
        mine = [int(self._saving.is_busy), int(not self._fits(tensors)), int(not may_overlap)]
        busy, changed, at_once = self._peers.largest(mine)
        if busy:
            if session().is_main:
                session().alert(
                    "checkpoint-late", "the last checkpoint is still being written: one is left out", step=step
                )
            return False
        self._slots.release()
        self._saves += 1
        if changed or self._must_lay_out:
            self._lay_out(tensors)
        self._take(step, reason, metrics, tensors, began, may_overlap=not at_once)
        return True

    def is_memory_due(self, step: int) -> bool:
        """The same on every rank."""
        return not self.pace.is_off and self.pace.is_due(step, last=self._copied_step, gap=self._gap)

    def remember(self, step: int, metrics: dict[str, float]) -> None:
        """Copy the state into the node's memory. Every rank calls it, and waits for none that has made the copy before
        in the meantime."""
        self._heed()
        began = time.monotonic()
        self._copied_step = step
        tensors = self._tensors()
        if self._must_lay_out:
            (busy,) = self._peers.largest([int(self._saving.is_busy)])
            if busy:
                return  # its arena is of the layout before
            self._lay_out(tensors)
            if self.pace.is_off:
                return  # on all ranks
        if self._fits(tensors) and self._slots.all_on_record:
            self._take(step, None, metrics, tensors, began, may_overlap=True)
        else:
            self._tell_peers(changed=True)  # others take part in an exchange now

    def settle(self, step: int) -> None:
        """At the end of a step, before all else: what was copied beside it is complete now, and is used."""
        if self._taken is None:
            return
        taken, self._taken = self._taken, None
        is_whole = taken.copy.finish()  # on a GPU the host may wait, and training does not
        began = time.monotonic()
        taken.spent_s += taken.copy.held_up_s(self.pace.step_s)
        if is_whole:
            self._record(taken)
        self._tell_peers(torn=not is_whole)
        if taken.reason is not None:
            if self._heed():
                self.begin(step, taken.reason, taken.metrics)
            else:
                taken.spent_s += time.monotonic() - began
                self._order(taken)

    def look(self) -> None:
        """Hear how the last save went, if it is over."""
        self._hear(wait_s=0.0)

    def wait(self, step: int) -> None:
        self.settle(step)
        self._hear(wait_s=None)

    def close(self, *, wait_s: float | None, is_done: bool = False) -> None:
        """`is_done`: training has ended well and its last step is on the disk, so nobody needs the copies."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._taken is not None:  # left by an exception: nobody can be asked any more
            taken, self._taken = self._taken, None
            if _is_whole(taken.copy):
                self._record(taken)
                if taken.reason is not None:
                    self._order(taken)
        self._hear(wait_s)
        self._saving.close(wait_s=wait_s)
        self._copier.close()
        self._routes.clear()
        self._slots.close()
        if is_done:
            self._slots.forget()

    def _hear(self, wait_s: float | None) -> None:
        if self._saving.hear(wait_s):
            # One that was replaced may be alive, and read on.
            self._slots.end_saving(is_certain=self._saving.knows_arenas)

    def _tensors(self) -> dict[str, Tensor]:
        """With what is no tensor as one more."""
        tensors, blob = self._state.take()
        if len(blob) > self._blob.numel():
            self._blob = torch.zeros(pages_of(len(blob)), dtype=torch.uint8)
        self._blob[: len(blob)] = torch.frombuffer(bytearray(blob), dtype=torch.uint8)
        tensors[f"{RANK}{self._peers.rank}"] = self._blob
        self._identity = identity_of(tensors)
        return tensors

    def _fits(self, tensors: dict[str, Tensor]) -> bool:
        if self._layout is None or not self._saving.knows_arenas:
            return False
        if any(route.identity == self._identity for route in self._routes.values()):
            return True
        return bool(self._layout.signature == signature_of(tensors))

    def _route(self, slot: Slot, tensors: dict[str, Tensor]) -> _Route:
        known = self._routes.get(slot.number)
        if known is not None and known.identity == self._identity:
            return known
        assert self._layout is not None
        assert slot.arena is not None
        route = _Route(
            identity=self._identity,
            tensors=tensors,
            moves=self._layout.moves(tensors, slot.arena),
            late=frozenset(n for n, t in tensors.items() if n.startswith(OPTIMIZER) or isinstance(t, nn.Parameter)),
        )
        if any(other.identity != self._identity for other in self._routes.values()):
            self._routes.clear()  # what they hold may be nobody else's any more
        if self._slots.are_on_record:
            self._routes[slot.number] = route  # worth it for copies that come often
        return route

    def _lay_out(self, tensors: dict[str, Tensor]) -> None:
        had_room = self._slots.all_on_record  # else there was none, whatever is said of it now
        self._routes.clear()
        self._slots.close()
        self._layout = build_layout(tensors, self._peers)
        on_gpu = any(tensor.device.type == "cuda" for tensor in tensors.values())
        room = 0
        if self._memory is not None and not self.pace.is_off and had_room:
            room = self._memory.slots_for(self._layout.arena_bytes, rank=self._peers.rank)
        (lacking,) = self._peers.largest([-room])
        if -lacking < 2:
            self.pace.is_off = True  # for all, since one has no room
        self._slots.lay_out(self._layout, -lacking, pinned=on_gpu)
        if self._memory is not None and self._slots.are_on_record and self._peers.rank == 0:
            terms = terms_of(self._memory, self._folder, self._keep, self._extras.get("encode") or {})
            with contextlib.suppress(OSError):  # copies are of use without it
                self._memory.keep_terms(asdict(terms))
        self._saving.knows_arenas = True  # those that will be claimed
        self._must_lay_out = False

    def _take(
        self,
        step: int,
        reason: SaveReason | None,
        metrics: dict[str, float],
        tensors: dict[str, Tensor],
        began: float,
        *,
        may_overlap: bool,
    ) -> None:
        """Begin the copy. What it is for happens now if the copy is over, else in `settle`. Saves are made by all ranks
        together, so of these all are settled if one may have to be."""
        assert self._layout is not None
        slot, is_first = self._slots.claim()
        assert slot.arena is not None
        if is_first:
            self._saving.give_arena(slot.arena, self._layout.metadata or b"", slot.number)
        route = self._route(slot, tensors)
        copy = self._copier.begin(route.moves, route.late, may_overlap=may_overlap)
        self._copied_step = step
        taken = _Taken(
            step=step,
            metrics=metrics,
            slot=slot,
            is_first=is_first,
            copy=copy,
            reason=reason,
            spent_s=time.monotonic() - began,
        )
        if copy.goes_on or (reason is not None and may_overlap):
            self._taken = taken
            return
        self._record(taken)
        if reason is not None:
            self._order(taken)
        self._tell_peers()

    def _record(self, taken: _Taken) -> None:
        """The copy is complete: it is one in the node's memory, if it was made there."""
        assert self._layout is not None
        assert taken.slot.arena is not None
        if not taken.is_first:
            self.pace.copied(taken.spent_s)
        mine = session()
        copy = MemoryCopy(
            rank=self._peers.rank,
            slot=taken.slot.number,
            life=self._life,
            step=taken.step,
            run_id=mine.run_id,
            attempt=mine.attempt,
            world_size=self._peers.world_size,
            plan=self._state.plan,
            layout=self._layout.digest,
            size_bytes=taken.slot.arena.size_bytes,
            files=self._files(),
            created_at=time.time(),
            metrics=taken.metrics,
        )
        self._slots.commit(taken.slot, copy)

    def _order(self, taken: _Taken) -> None:
        assert taken.reason is not None
        if not self._saving.knows_arenas:
            return  # it ended when it was given the arena: the save has failed, and that was told
        mine = session()
        order = Order(
            folder=str(self._folder),
            # Of its own: a save of the same step that came to nothing may have left parts of some ranks.
            save_id=f"{self._life}{self._saves:04x}",
            rank=self._peers.rank,
            world_size=self._peers.world_size,
            step=taken.step,
            files=self._files(),
            run_id=mine.run_id,
            attempt=mine.attempt,
            reason=str(taken.reason),
            plan=self._state.plan,
            metrics=taken.metrics,
            keep=self._keep,
            arena=taken.slot.number,
            **self._extras,
        )
        self._slots.begin_saving(taken.slot)
        self._saving.give(order)
        if not self._saving.is_busy:
            self._slots.end_saving(is_certain=False)
        if mine.is_main:
            mine.note_metrics(taken.step, {"checkpoint_stall_s": taken.spent_s})

    def _files(self) -> list[list[Any]]:
        assert self._layout is not None
        return [[file.name, file.start, file.size_bytes] for file in self._layout.files]

    def _tell_peers(self, *, torn: bool = False, changed: bool = False) -> None:
        mine = [int(torn), int(changed), self.pace.steps, int(self._saving.is_busy)]
        self._exchange = self._peers.begin_largest(mine)

    def _heed(self) -> bool:
        """What ranks said after the last copy; waits for those that have not made it. True: it is no good."""
        if self._exchange is None:
            return False
        torn, changed, self._gap, busy = self._exchange.result()
        self._exchange = None
        if not busy:
            self._slots.release()
        if torn or changed:  # some rank has no such copy: the place of one that all have is not to be taken next
            self._slots.give_up(self._copied_step)
        self._must_lay_out = self._must_lay_out or bool(changed)
        if torn:
            self._copier.give_up_overlapping()
        return bool(torn)


def _is_whole(copy: Copy) -> bool:
    """As far as can be told: where the device has failed, all that is asked of it fails."""
    try:
        return copy.finish()
    except RuntimeError:
        return False
