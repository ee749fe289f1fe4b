"""Copying a state into an arena: `Copier`. From a GPU the copy can go on while the next batch is computed.

Until an optimizer changes them, parameters and its own state stay as they are: the copy has until then, and the
optimizer waits for it on the device. Buffers and what is in the host's memory are copied before training goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from windlass.job.checkpoint.layout import Move


class Copy:
    """One copy that may still go on."""

    def __init__(self, late: Sequence[Move], ends: Sequence[tuple[torch.device, Any, Any]]) -> None:
        self._versions = [(move.source, move.source._version) for move in late]
        self._ends = ends  # of each device: what was recorded before and after
        self._is_torn = False
        self.is_ordered = not ends  # the next change of the state comes after the copy for certain
        self.goes_on = bool(ends)

    def put_before(self) -> None:
        """What the current stream is given from now on waits for the copy."""
        self._is_torn = self._was_changed()
        for device, _, end in self._ends:
            wait_on_device(device, end)
        self.is_ordered = True

    def finish(self) -> bool:
        """Wait for it. False: the state was changed under it, by something that is no optimizer of torch's."""
        if not self.is_ordered:
            self._is_torn, self.is_ordered = self._was_changed(), True
        for _, _, end in self._ends:
            end.synchronize()
        self._versions = []
        self.goes_on = False
        return not self._is_torn

    @property
    def device_s(self) -> float:
        """How long the devices were at it, beside their other work; after `finish`."""
        return max((begin.elapsed_time(end) / 1e3 for _, begin, end in self._ends), default=0.0)

    def _was_changed(self) -> bool:
        return any(source._version != version for source, version in self._versions)


class Copier:
    def __init__(self, optimizer: torch.optim.Optimizer | None, *, overlaps: bool = False) -> None:
        """`overlaps`: copies that may go on beside the model's work do."""
        self._optimizer = optimizer
        self._current = Copy((), ())
        self._streams: dict[torch.device, Any] = {}
        # Whether our hook has seen the optimizer's step: in a recorded graph of the device it would not, and nothing
        # would wait for us.
        self._was_seen = False
        can = optimizer is not None and not any(group.get("capturable") for group in optimizer.param_groups)
        self._never = not (overlaps and can)
        self._hook = register_optimizer_step_pre_hook(self._before_update)  # of any optimizer

    @property
    def can_overlap(self) -> bool:
        return self._was_seen and not self._never and self._has_device()

    @torch.no_grad()
    def begin(self, moves: Sequence[Move], late: frozenset[str], *, may_overlap: bool) -> Copy:
        """`late`: names of the tensors that none but an optimizer changes. The copy is over unless it may overlap."""
        overlaps = may_overlap and self.can_overlap
        beside = [move for move in moves if overlaps and self._is_on_device(move) and move.name in late]
        chosen = set(map(id, beside))
        devices = {move.source.device for move in moves if move.source.is_cuda}
        ends = self._copy_beside(beside)
        copy_now([move for move in moves if id(move) not in chosen])
        for device in devices:
            stream = torch.cuda.current_stream(device)
            if not overlaps:
                stream.synchronize()
            elif any(move.source.device == device and id(move) not in chosen for move in moves):
                end = _event()
                end.record(stream)  # the model's next work on this stream comes after these copies anyway
                ends.append((device, end, end))
        self._current = Copy(beside, ends)
        return self._current

    def give_up_overlapping(self) -> None:
        self._never = True

    def close(self) -> None:
        self._hook.remove()

    def _has_device(self) -> bool:
        return torch.cuda.is_available()

    def _is_on_device(self, move: Move) -> bool:
        return move.source.is_cuda

    def _copy_beside(self, moves: Sequence[Move]) -> list[tuple[torch.device, Any, Any]]:
        """On streams of their own, after all that the devices were given up to now."""
        ends = []
        for device in {move.source.device for move in moves}:
            stream = self._streams.setdefault(device, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(device))
            begin, end = _event(), _event()
            with torch.cuda.stream(stream):
                begin.record(stream)
                copy_now([move for move in moves if move.source.device == device])
                end.record(stream)
            ends.append((device, begin, end))
        return ends

    def _before_update(self, optimizer: Any, *_: Any) -> None:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            self._never = True
            return
        self._was_seen = self._was_seen or optimizer is self._optimizer
        if not self._current.is_ordered:
            self._current.put_before()


def wait_on_device(device: torch.device, end: Any) -> None:
    torch.cuda.current_stream(device).wait_event(end)


def copy_now(moves: Sequence[Move]) -> None:
    """Or, from a device, as soon as its current stream comes to it."""
    here = [move for move in moves if not move.source.is_cuda]
    if here:
        torch._foreach_copy_([move.target for move in here], [move.source for move in here])
    for move in moves:
        if move.source.is_cuda:
            move.target.copy_(move.source, non_blocking=True)


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
