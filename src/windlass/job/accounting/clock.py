"""Time and values of steps as the device sees them, read later so that nobody waits: on a GPU by events and copies that
take their turn in its stream, elsewhere at once."""

from __future__ import annotations

import resource
import time
from typing import Any, Protocol

import torch
from torch import Tensor


class Clock(Protocol):
    lag: int  # steps after which a mark is read

    def mark(self) -> Any:
        """Now, in the device's order of work."""

    def settle(self, mark: Any) -> bool:
        """Returns when the mark has been reached; captured values from before it can be read then. False: the device
        was behind, and had to be waited for."""

    def between_s(self, earlier: Any, later: Any) -> float:
        """Of two marks that have been reached."""

    def capture(self, value: Tensor | float) -> Tensor | float:
        """A value as it is at this place of the device's work, for `float()` after a later mark was reached. Of a
        tensor on the device with several numbers, a tensor of as many."""

    def is_there(self, value: Tensor) -> bool:
        """Whether the host can read it now, without waiting for the device."""

    def peak_memory_bytes(self) -> int: ...


class HostClock:
    lag = 0

    def mark(self) -> float:
        return time.perf_counter()

    def settle(self, mark: float) -> bool:  # noqa: ARG002
        return True

    def between_s(self, earlier: float, later: float) -> float:
        return later - earlier

    def capture(self, value: Tensor | float) -> float:
        return float(value.item() if isinstance(value, Tensor) else value)

    def is_there(self, value: Tensor) -> bool:  # noqa: ARG002
        return True

    def peak_memory_bytes(self) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class CudaClock:
    # The host may run two steps ahead. Always the same number of steps, never "whatever is there already": what is
    # decided from the values is then decided in the same step on all processes.
    lag = 2

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def settle(self, mark: torch.cuda.Event) -> bool:
        if mark.query():  # type: ignore[no-untyped-call]
            return True
        mark.synchronize()
        return False

    def between_s(self, earlier: torch.cuda.Event, later: torch.cuda.Event) -> float:
        return float(earlier.elapsed_time(later)) / 1000

    def capture(self, value: Tensor | float) -> Tensor | float:
        if isinstance(value, Tensor) and value.is_cuda:
            # Into pinned memory, which torch takes by itself for a copy that does not block.
            value = value.detach()
            if value.device != self._device:
                # Of another GPU of this process: marks are in the order of this one. A copy waits in that of both.
                value = value.to(self._device, non_blocking=True)
            return value.to("cpu", torch.float32, non_blocking=True)
        return float(value.item() if isinstance(value, Tensor) else value)

    def is_there(self, value: Tensor) -> bool:
        return not value.is_cuda

    def peak_memory_bytes(self) -> int:
        return int(torch.cuda.max_memory_allocated(self._device))


def clock_of(device: torch.device) -> Clock:
    return CudaClock(device) if device.type == "cuda" else HostClock()
