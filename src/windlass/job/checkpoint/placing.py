"""Bytes of a checkpoint's files to their places in live tensors, as they are read: `Lanes`.

Each thread that reads has a lane: buffers of its own, pinned where tensors are on a GPU, and a stream to send them by
while the next one is read.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from windlass.job.checkpoint.arena import Arena
from windlass.job.checkpoint.reading import PIECE

_WORTH_A_READ = 128 << 10  # less than that comes with its neighbours, and is copied
_BUFFERS_FOR_GPU = 3  # one is read into, one is on its way, and one more, for neither to wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """So many bytes of a file, from byte `start`, are those of the target, which is flat and of bytes. `is_held`: it
    holds something now."""

    start: int
    target: Tensor
    is_held: bool = True

    @property
    def end(self) -> int:
        return self.start + self.target.nbytes


class Lanes:
    """`stretches` by the names of their files. `has_changed`, when it is closed: bytes came to a target that held
    something."""

    def __init__(self, stretches: Mapping[str, Iterable[Stretch]], count: int) -> None:
        ordered = {name: _Ordered(found) for name, found in stretches.items()}
        self._targets = [stretch.target for each in ordered.values() for stretch in each.stretches]
        devices = {target.device for target in self._targets if target.is_cuda}
        buffers = _BUFFERS_FOR_GPU if devices else 1
        self._arena = Arena(count * buffers * PIECE, pinned=bool(devices))
        pieces = [self._arena.bytes[at : at + PIECE] for at in range(0, self._arena.size_bytes, PIECE)]
        views = [self._arena.memory[at : at + PIECE] for at in range(0, self._arena.size_bytes, PIECE)]
        self.has_changed = False
        self.all = [PlacingLane(pieces[n::count], views[n::count], ordered, devices) for n in range(count)]

    def close(self) -> None:
        """When this returns all of it is where it belongs; the threads are over."""
        for lane in self.all:
            lane.settle()
            self.has_changed = self.has_changed or lane.has_changed
        self.all.clear()
        self._arena.close()
        # What was written behind its back: autograd, and whoever keeps what was made of a tensor, can tell.
        torch.autograd.graph.increment_version(self._targets)


class _Ordered:
    def __init__(self, stretches: Iterable[Stretch]) -> None:
        self.stretches = sorted(stretches, key=lambda stretch: stretch.start)
        self._starts = [stretch.start for stretch in self.stretches]
        self._longest = max((stretch.target.nbytes for stretch in self.stretches), default=0)

    def between(self, start: int, end: int) -> Sequence[Stretch]:
        """All that have some of these bytes, and perhaps others."""
        return self.stretches[bisect_left(self._starts, start - self._longest) : bisect_left(self._starts, end)]


class PlacingLane:
    def __init__(
        self,
        buffers: Sequence[Tensor],
        views: Sequence[memoryview],
        stretches: Mapping[str, _Ordered],
        devices: Iterable[torch.device],
    ) -> None:
        self._buffers = buffers
        self._views = views  # of the same memory
        self._stretches = stretches
        self._streams = {device: torch.cuda.Stream(device) for device in devices}  # type: ignore[no-untyped-call]
        self._sent: list[list[torch.cuda.Event]] = [[] for _ in buffers]
        self._number = 0
        self.has_changed = False
        for device, stream in self._streams.items():
            # What was begun with the targets before, such as their making, comes first.
            stream.wait_stream(torch.cuda.current_stream(device))

    def target(self, name: str, at: int) -> memoryview | None:
        ordered = self._stretches.get(name)
        found = ordered.between(at, at + PIECE) if ordered is not None else ()
        here = [stretch for stretch in found if stretch.start <= at < stretch.end]
        if len(here) != 1 or here[0].target.is_cuda:
            return None
        size = min(PIECE, here[0].end - at)
        if size < _WORTH_A_READ or any(at < stretch.start < at + size for stretch in found):
            return None  # or some of it belongs elsewhere too
        self.has_changed = self.has_changed or here[0].is_held
        place = here[0].target.data_ptr() + at - here[0].start
        return memoryview((ctypes.c_char * size).from_address(place)).cast("B")

    def buffer(self) -> memoryview:
        self._number = (self._number + 1) % len(self._buffers)
        for event in self._sent[self._number]:
            event.synchronize()
        self._sent[self._number].clear()
        return self._views[self._number]

    def place(self, name: str, at: int, count: int) -> None:
        ordered, buffer = self._stretches.get(name), self._buffers[self._number]
        used = set()
        for stretch in ordered.between(at, at + count) if ordered is not None else ():
            start, end = max(at, stretch.start), min(at + count, stretch.end)
            if start >= end:
                continue
            self.has_changed = self.has_changed or stretch.is_held
            device = stretch.target.device
            if device in self._streams:
                used.add(device)
                with torch.cuda.stream(self._streams[device]):
                    target = stretch.target[start - stretch.start : end - stretch.start]
                    target.copy_(buffer[start - at : end - at], non_blocking=True)
            else:  # not by torch: it would have all cores copy this, and other lanes are at work on them
                target_at = stretch.target.data_ptr() + start - stretch.start
                ctypes.memmove(target_at, buffer.data_ptr() + start - at, end - start)
        for device in used:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._streams[device])
            self._sent[self._number].append(event)

    def settle(self) -> None:
        for stream in self._streams.values():
            stream.synchronize()
