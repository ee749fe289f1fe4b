"""How long the training loop has waited for data: one account a process, kept by loaders and read by meters."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_MOST_UNREAD = 256  # waits, where nobody asks how long they were: a loop may have a loader and no meter


class Waiting:
    """On a GPU it is the device's idle time that counts: while earlier work keeps it busy, the host may well wait."""

    def __init__(self) -> None:
        self._total_s = 0.0
        self._unread: deque[tuple[Any, Any]] = deque()  # CUDA events around a wait

    def total_s(self) -> float:
        while self._unread and self._unread[0][1].query():
            before, after = self._unread.popleft()
            self._total_s += before.elapsed_time(after) / 1000
        return self._total_s

    @contextmanager
    def measured(self, device: Any = None) -> Iterator[None]:
        """Everything inside is waiting; `device` is a torch.device, None for the host alone."""
        if device is None or device.type != "cuda":
            began = time.perf_counter()
            try:
                yield
            finally:
                self._total_s += time.perf_counter() - began
            return
        import torch

        stream = torch.cuda.current_stream(device)
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before.record(stream)
        try:
            yield
        finally:
            # Reached by the device at once if it was idle: then the time between the two is what it waited.
            after.record(stream)
            self._unread.append((before, after))
            if len(self._unread) > _MOST_UNREAD:
                self.total_s()


@functools.cache
def waiting() -> Waiting:
    """This process's account. One a process, as the loop that waits is."""
    return Waiting()
