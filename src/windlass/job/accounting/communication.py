"""How much of a step is communication: measured on single steps now and then, with torch's profiler.

A measured step is slower, so the next one comes only when the loop has run long enough for that not to matter.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd import DeviceType, _profiler_enabled  # type: ignore[attr-defined]

from windlass.job.accounting.intervals import Interval, Shares, shares

COST_SHARE = 0.004  # of the loop's time that measuring may take
FIRST_AFTER_S = 20.0
_FIRST_STEP = 10  # caches, compilers and allocators have settled
_TALKING = ("nccl", "gloo:", "mpi:", "ucc:")


class Sampler:
    """Told of the end of every step; `shares` is what the last measured step was like, None before."""

    def __init__(self, device: torch.device, *, first_after_s: float = FIRST_AFTER_S) -> None:
        self._on_gpu = device.type == "cuda"
        self._profiler: Any = None
        self._began = self._step_began = 0.0
        self._next_at = time.perf_counter() + first_after_s
        self._usual_s = 0.0
        self._last_end = time.perf_counter()
        self.shares: Shares | None = None
        self.cost_s = 0.0  # of all measured steps together
        _samplers.add(self)

    def step_ended(self, step: int) -> None:
        now = time.perf_counter()
        if self._profiler is not None:
            self._finish(now)
        elif step >= _FIRST_STEP and now >= self._next_at and not profiler_busy():
            self._start(now)
        else:
            self._usual_s = now - self._last_end
        self._last_end = time.perf_counter()

    def give_up(self) -> None:
        """The step being measured, if there is one."""
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None

    def _start(self, now: float) -> None:
        quiet_profiler()
        activity = torch.profiler.ProfilerActivity.CUDA if self._on_gpu else torch.profiler.ProfilerActivity.CPU
        self._began = now
        self._profiler = torch.profiler.profile(activities=[activity], acc_events=True)
        self._profiler.start()
        if self._on_gpu:
            torch.cuda.synchronize()
        self._step_began = time.perf_counter()

    def _finish(self, now: float) -> None:
        profiler, self._profiler = self._profiler, None
        if self._on_gpu:
            torch.cuda.synchronize()
            now = time.perf_counter()
        profiler.stop()
        self.shares = shares_of(profiler, on_gpu=self._on_gpu, span_s=now - self._step_began)
        cost_s = max(0.0, time.perf_counter() - self._began - self._usual_s)
        self.cost_s += cost_s
        self._next_at = time.perf_counter() + cost_s / COST_SHARE


_samplers: weakref.WeakSet[Sampler] = weakref.WeakSet()


def profiler_busy() -> bool:
    """Torch has one profiler a process; the program may use it itself."""
    return bool(_profiler_enabled())


def free_profiler() -> None:
    """For somebody who asks for it: single steps can be measured later."""
    for sampler in list(_samplers):
        sampler.give_up()


def quiet_profiler() -> None:
    """Keeps the profiler from writing about its own starts and stops to stderr; asked once, at its first start."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def shares_of(profiler: Any, *, on_gpu: bool, span_s: float) -> Shares:
    """Of a stopped torch profiler that saw `span_s` seconds."""
    talking: list[Interval] = []
    working: list[Interval] = []
    for name, begin_s, end_s in _events(profiler, on_gpu=on_gpu):
        if any(word in name for word in _TALKING):
            talking.append((begin_s, end_s))
        elif on_gpu or name.startswith("aten::"):
            working.append((begin_s, end_s))
    return shares(communication=talking, compute=working, span_s=span_s)


def _events(profiler: Any, *, on_gpu: bool) -> Iterable[tuple[str, float, float]]:
    # The raw records: `profiler.events()` would make a tree of them all, which takes longer than the step.
    wanted = DeviceType.CUDA if on_gpu else DeviceType.CPU
    for event in profiler.profiler.kineto_results.events():
        if event.device_type() == wanted:
            begin_ns = event.start_ns()
            yield event.name().lower(), begin_ns / 1e9, (begin_ns + event.duration_ns()) / 1e9
