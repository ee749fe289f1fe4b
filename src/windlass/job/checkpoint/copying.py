"""Copying a state into an arena: `Copier`. The copy can go on while the next batch is computed: from a GPU by a stream
of its own, within the host's memory by a thread, where training leaves a core free.

Until an optimizer changes them, parameters and its own state stay as they are: the copy has until then, and the
optimizer waits for it. Buffers and the rest are copied before training goes on.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from windlass.job.checkpoint.layout import Move

_WORTH_A_THREAD_BYTES = 16 << 20  # copied in a millisecond or two; less is copied at once
_HIDDEN = 0.8  # of a step's time can pass before the optimizer would wait for a device's copy


class Ending(Protocol):
    """Of copies that go on, all of one place."""

    def precede(self) -> None:
        """Whatever changes the state from now on comes after them."""

    def wait(self) -> None: ...

    def held_up_s(self, step_s: float) -> float:
        """How long training has waited for them, where a step takes so long; after `wait`."""


class DeviceEnding:
    def __init__(self, device: torch.device, begin: Any, end: Any) -> None:
        self._device, self._begin, self._end = device, begin, end

    def precede(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._end)

    def wait(self) -> None:
        self._end.synchronize()

    def held_up_s(self, step_s: float) -> float:
        return max(0.0, float(self._begin.elapsed_time(self._end)) / 1e3 - _HIDDEN * step_s)


class HostEnding:
    """By one thread, and not by torch, which would have all cores copy."""

    def __init__(self, moves: Sequence[Move]) -> None:
        self._held_up_s = 0.0
        self._thread = threading.Thread(target=_copy_bytes, args=(moves,), name="windlass-copy", daemon=True)
        self._thread.start()

    def precede(self) -> None:
        self.wait()

    def wait(self) -> None:
        began = time.perf_counter()
        self._thread.join()
        self._held_up_s += time.perf_counter() - began

    def held_up_s(self, step_s: float) -> float:  # noqa: ARG002
        return self._held_up_s


def _copy_bytes(moves: Sequence[Move]) -> None:
    for move in moves:
        ctypes.memmove(move.target.data_ptr(), move.source.data_ptr(), move.source.nbytes)


class Copy:
    """One copy that may still go on."""

    def __init__(self, late: Sequence[Move], endings: Sequence[Ending]) -> None:
        self._versions = [(move.source, move.source._version) for move in late]
        self._endings = endings
        self._is_torn = False
        self.is_ordered = not endings  # the next change of the state comes after the copy for certain
        self.goes_on = bool(endings)

    def put_before(self) -> None:
        """Before what changes the state next."""
        self._is_torn = self._was_changed()
        for ending in self._endings:
            ending.precede()
        self.is_ordered = True

    def finish(self) -> bool:
        """Wait for it. False: the state was changed under it, by something that is no optimizer of torch's."""
        if not self.is_ordered:
            self._is_torn, self.is_ordered = self._was_changed(), True
        for ending in self._endings:
            ending.wait()
        self._versions = []
        self.goes_on = False
        return not self._is_torn

    def held_up_s(self, step_s: float) -> float:
        """As of an ending; after `finish`."""
        return max((ending.held_up_s(step_s) for ending in self._endings), default=0.0)

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

    def can_overlap(self, size_bytes: int) -> bool:
        can = torch.cuda.is_available() or (size_bytes >= _WORTH_A_THREAD_BYTES and has_free_core())
        return can and self._was_seen and not self._never

    @torch.no_grad()
    def begin(self, moves: Sequence[Move], late: frozenset[str], *, may_overlap: bool) -> Copy:
        """`late`: names of the tensors that none but an optimizer changes. The copy is over unless it may overlap."""
        overlaps = may_overlap and self.can_overlap(sum(move.source.nbytes for move in moves))
        beside = self._choose([move for move in moves if move.name in late]) if overlaps else []
        chosen = set(map(id, beside))
        devices = {move.source.device for move in moves if move.source.is_cuda}
        endings = self._copy_beside(beside)
        copy_now([move for move in moves if id(move) not in chosen])
        for device in devices:
            stream = torch.cuda.current_stream(device)
            if not overlaps:
                stream.synchronize()
            elif any(move.source.device == device and id(move) not in chosen for move in moves):
                end = _event()
                end.record(stream)  # the model's next work on this stream comes after these copies anyway
                endings.append(DeviceEnding(device, end, end))
        self._current = Copy(beside, endings)
        return self._current

    def give_up_overlapping(self) -> None:
        self._never = True

    def close(self) -> None:
        self._hook.remove()

    def _choose(self, late: Sequence[Move]) -> list[Move]:
        """Those that are worth to be copied beside the model's work."""
        there = [move for move in late if move.source.is_cuda]
        here = [move for move in late if type(move.source) is Tensor and move.source.device.type == "cpu"]
        here = [move for move in here if move.source.is_contiguous()]
        is_worth_it = sum(move.source.nbytes for move in here) >= _WORTH_A_THREAD_BYTES and has_free_core()
        return there + here if is_worth_it else there

    def _copy_beside(self, moves: Sequence[Move]) -> list[Ending]:
        """On streams of their own, after all that the devices were given up to now; on the host by a thread."""
        endings: list[Ending] = []
        for device in {move.source.device for move in moves if move.source.is_cuda}:
            stream = self._streams.setdefault(device, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(device))
            begin, end = _event(), _event()
            with torch.cuda.stream(stream):
                begin.record(stream)
                copy_now([move for move in moves if move.source.device == device])
                end.record(stream)
            endings.append(DeviceEnding(device, begin, end))
        if here := [move for move in moves if not move.source.is_cuda]:
            endings.append(HostEnding(here))
        return endings

    def _before_update(self, optimizer: Any, *_: Any) -> None:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            self._never = True
            return
        self._was_seen = self._was_seen or optimizer is self._optimizer
        if not self._current.is_ordered:
            self._current.put_before()


def has_free_core() -> bool:
    """Whether training leaves one of this machine's cores to others: where it keeps all of them busy, whatever goes on
    beside it holds it up."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return processes * torch.get_num_threads() < len(os.sched_getaffinity(0))


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
