"""A rank's arenas, used in turns, so that a complete copy is there at every moment: `Slots`.

In the node's memory if it has some to spare, where copies are on record; else one anonymous arena, for saves alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from windlass.job.checkpoint.arena import Arena
from windlass.job.checkpoint.layout import Layout
from windlass.job.checkpoint.memory import MOST_SLOTS, MemoryCopy, NodeMemory
from windlass.job.session import session


@dataclass(slots=True, kw_only=True)
class Slot:
    number: int
    arena: Arena | None = None  # as this process has it
    step: int | None = None  # whose copy is complete
    is_read: bool = False  # by a save that goes on, of this rank or of another one
    is_on_record: bool = False  # can be: its arena is in the node's memory


def choose_slot(slots: Sequence[Slot]) -> Slot:
    """The oldest copy is given up. The newest only if the one before is there to stay: a save reads it."""
    return min((slot for slot in slots if not slot.is_read), key=lambda slot: -1 if slot.step is None else slot.step)


class Slots:
    def __init__(self, memory: NodeMemory | None, rank: int, restored: MemoryCopy | None) -> None:
        self._memory = memory
        self._rank = rank
        self._restored = restored
        self._slots: list[Slot] = []
        self._layout: Layout | None = None
        self._pinned = False
        if memory is not None:
            for copy in memory.copies(rank):
                if restored is None or copy.slot != restored.slot:
                    memory.drop(rank, copy.slot)  # what all ranks went on from is another one

    def lay_out(self, layout: Layout, count: int, *, pinned: bool) -> None:
        """For `count` copies in the node's memory; under two: one that is nowhere on record."""
        self.close()
        self._layout, self._pinned = layout, pinned
        kept = {slot.number: slot.step for slot in self._slots if slot.step is not None and slot.is_on_record}
        if not self._slots and self._restored is not None:
            kept = {self._restored.slot: self._restored.step}
        in_memory = self._memory is not None and count >= 2
        newest_first = sorted(range(MOST_SLOTS), key=lambda number: (-kept.get(number, -1), number))
        numbers = newest_first[: count if in_memory else 1]
        self._slots = [
            Slot(number=number, step=kept.get(number) if in_memory else None, is_on_record=in_memory)
            for number in sorted(numbers)
        ]
        if self._memory is not None:
            if layout.metadata is not None:
                copies = self._memory.copies(self._rank)
                self._memory.drop_layouts(but={copy.layout for copy in copies})
                try:
                    self._memory.keep_layout(layout.metadata)
                except OSError as error:  # copies without it are of no use
                    for slot in self._slots:
                        self._take_off_record(slot, error)
            for number in range(MOST_SLOTS):
                if number not in numbers and number not in kept:
                    self._memory.discard(self._rank, number)

    @property
    def are_on_record(self) -> bool:
        return any(slot.is_on_record for slot in self._slots)

    @property
    def all_on_record(self) -> bool:
        return all(slot.is_on_record for slot in self._slots)

    def claim(self) -> tuple[Slot, bool]:
        """One whose bytes may be changed: what it held is no copy any more. True: its arena is new to the saver."""
        assert self._layout is not None
        slot = choose_slot(self._slots)
        self._empty(slot)
        if slot.arena is not None:
            return slot, False
        slot.arena = self._open(slot, self._layout.arena_bytes)
        self._layout.prepare(slot.arena)
        return slot, True

    def commit(self, slot: Slot, copy: MemoryCopy) -> None:
        """All its bytes are there."""
        slot.step = copy.step
        if slot.is_on_record and self._memory is not None:
            try:
                self._memory.commit(copy)
            except OSError as error:
                self._take_off_record(slot, error)

    def give_up(self, step: int) -> None:
        """The copy of this step, if there is one: what it held is no copy any more."""
        for slot in self._slots:
            if slot.step == step:
                self._empty(slot)

    def begin_saving(self, slot: Slot) -> None:
        if slot.is_on_record and self._memory is not None:
            try:
                self._memory.begin_saving(self._rank, slot.number)
            except OSError as error:
                self._memory.discard(self._rank, slot.number)  # unmarked, others would write to what is being read
                self._take_off_record(slot, error)
        slot.is_read = True

    def end_saving(self, *, is_certain: bool = True) -> None:
        """This rank's save is over. `is_certain`: nobody reads it any more. Else what is marked so is not written to
        again."""
        for slot in self._slots:
            if slot.is_read and is_certain and slot.is_on_record and self._memory is not None:
                self._memory.end_saving(self._rank, slot.number)

    def release(self) -> None:
        """The saves of all ranks are over. Not before: of two copies, ranks must give up that of the same step."""
        for slot in self._slots:
            slot.is_read = False

    def close(self) -> None:
        for slot in self._slots:
            if slot.arena is not None:
                slot.arena.close()
                slot.arena = None

    def forget(self) -> None:
        """The memory is given back: nobody is to go on from these. After `close`."""
        if self._memory is not None:
            for number in range(MOST_SLOTS):
                self._memory.discard(self._rank, number)

    def _empty(self, slot: Slot) -> None:
        slot.step = None
        if slot.is_on_record and self._memory is not None:
            self._memory.drop(self._rank, slot.number)

    def _open(self, slot: Slot, size_bytes: int) -> Arena:
        if slot.is_on_record and self._memory is not None:
            path = self._memory.arena(self._rank, slot.number)
            if self._memory.is_saving(self._rank, slot.number) or _size(path) != max(size_bytes, 4096):
                self._memory.discard(self._rank, slot.number)
            try:
                return Arena(size_bytes, pinned=self._pinned, path=path)
            except OSError as error:
                self._take_off_record(slot, error)
        return Arena(size_bytes, pinned=self._pinned)

    @staticmethod
    def _take_off_record(slot: Slot, error: OSError) -> None:
        slot.is_on_record = False
        session().alert("checkpoint-memory", f"no copy is kept in the node's memory, for there is no room: {error}")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
