"""Losses and gradient norms of steps that nothing is logged of, kept where they are and then read all together.

A copy to the host and a mark for every step cost little, but after a wait for the device all code is cold, and the
device has nothing to do until the host is through with it. So tensors on a device stay there, and one copy takes all
of them when the next step is read. They must be then what they were: a tensor that has changed is not judged, and one
of which that could not be seen is not kept. Either shows how a program goes about its values, so nothing is kept of it
from then on.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from windlass.job.accounting.clock import Clock

MOST_STEPS = 1000
_GRAPHS = "torch._inductor.cudagraph_trees"  # loaded when a compiled model is first recorded as graphs
_MOST_BYTES = 4096  # of a kept tensor's memory: a part of a large one would keep the whole of it


class Judged(NamedTuple):
    number: int
    loss: float | None
    grad_norm: float | None
    scaled: bool


@dataclass(slots=True)
class _Kept:
    number: int
    tensor: Tensor
    version: int
    is_lost: bool = False


_Value: TypeAlias = float | _Kept | None
_Entry: TypeAlias = tuple[int, _Value, _Value, bool]  # as in Judged


class Pending:
    """What was captured together; to be read when a later mark has been reached."""

    def __init__(self, entries: Sequence[_Entry], captured: Tensor | float | None) -> None:
        self._entries, self._captured = entries, captured

    def read(self) -> list[Judged]:
        numbers = iter(self._captured.tolist() if isinstance(self._captured, Tensor) else ())

        def value(kept: _Value) -> float | None:
            if isinstance(kept, _Kept):
                return None if kept.is_lost else next(numbers)
            return kept

        return [Judged(number, value(loss), value(norm), scaled) for number, loss, norm, scaled in self._entries]


class Backlog:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: list[_Entry] = []
        self._at: dict[int, _Kept] = {}  # by address
        self._device = -1
        self.can_keep = True  # all could be kept so far, and has not changed
        self.is_due = False  # no more may wait; or one is known to be no number, as one on the host is

    def __len__(self) -> int:
        return len(self._entries)

    def add(
        self, number: int, loss: Tensor | float | None, grad_norm: Tensor | float | None, *, scaled: bool = False
    ) -> bool:
        """False: they cannot wait, and neither of them is kept."""
        kept_loss = None if loss is None else self._keep(number, loss)
        kept_norm = None if grad_norm is None else self._keep(number, grad_norm)
        if self.can_keep:
            self._entries.append((number, kept_loss, kept_norm, scaled))
            if len(self._entries) >= MOST_STEPS:
                self.is_due = True
        return self.can_keep

    def capture(self) -> Pending:
        """All of them, with one copy. Nothing waits afterwards."""
        entries, self._entries = self._entries, []
        self._at.clear()
        self.is_due = False
        there: list[Tensor] = []
        for entry in entries:
            for kept in entry[1:3]:
                if isinstance(kept, _Kept):
                    if kept.tensor._version != kept.version:
                        kept.is_lost, self.can_keep = True, False
                    if not kept.is_lost:
                        there.append(kept.tensor)
        return Pending(entries, self._clock.capture(torch.stack(there)) if there else None)

    def _keep(self, number: int, value: Tensor | float) -> _Value:
        if not isinstance(value, Tensor):
            return self._known(float(value))
        if self._clock.is_there(value):
            return self._known(float(value.item()))
        if not self._can_wait(value):
            self.can_keep = False
            return None
        # Without what it was computed from, which would stay as well. It counts changes together with the original.
        tensor = value.detach()
        if tensor.dim():
            tensor = tensor.reshape(())
        kept = _Kept(number, tensor, tensor._version)
        # Memory that is kept is given to nobody else. So whoever has a value there again writes to one place at every
        # step, perhaps without torch's knowledge, as the replay of a graph does.
        address = tensor.data_ptr()
        earlier = self._at.get(address)
        if earlier is not None and earlier.number != number:
            earlier.is_lost, self.can_keep = True, False
        self._at[address] = kept
        return kept

    def _known(self, value: float) -> float:
        if not math.isfinite(value):
            self.is_due = True
        return value

    def _can_wait(self, value: Tensor) -> bool:
        # Compiled graphs give the memory of what they return to others, and forbid to read it then.
        if _GRAPHS in sys.modules:
            return False
        # Of other kinds of tensors (distributed ones) and of those of the inference mode it cannot be seen whether they
        # change. More than one number is an error that is raised where such a value is read.
        if not self._at:
            self._device = value.get_device()
        return (
            type(value) is Tensor
            and value.numel() == 1
            and not value.is_inference()
            and value.untyped_storage().nbytes() <= _MOST_BYTES
            and value.get_device() == self._device
        )
