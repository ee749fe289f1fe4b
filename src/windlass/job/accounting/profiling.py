"""`job.profile`: a few steps under torch's profiler, as a trace to look at and a table to read, one of each per rank.

with job.profile(steps=5) as profile:
    for inputs, targets in profile.over(batches):
        ...
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]

from windlass.job.accounting.communication import free_profiler, profiler_busy, quiet_profiler, shares_of
from windlass.job.accounting.intervals import Shares
from windlass.job.accounting.waiting import waiting
from windlass.job.session import session

Item = TypeVar("Item")

MOST_EVENTS = 1_000_000  # about 300 MB of JSON and 20 MB on disk; viewers give up on more
_ROWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    name: str
    calls: int
    seconds: float  # without what it called: on the GPU if there is one, else on the CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    rank: int
    device: str
    steps: int
    seconds: float
    data_wait_s: float
    shares: Shares
    operators: Sequence[Operator]
    trace: str  # its file name, or why there is none


class Profile:
    """Inside `with`: the first `warmup` steps pass, the next `steps` are recorded, then nothing more happens.

    `summary` is there from then on. Leaving early writes down what there is; leaving by an error writes nothing.
    """

    def __init__(self, *, steps: int, warmup: int, folder: Path, most_events: int) -> None:
        self.folder = folder
        self.summary: Summary | None = None
        self._wanted, self._warmup, self._most_events = steps, warmup, most_events
        self._on_gpu = torch.cuda.is_available()
        self._profiler: Any = None
        self._seen = 0
        self._began = self._waited_s = 0.0

    def __enter__(self) -> Profile:
        free_profiler()
        if profiler_busy():
            raise RuntimeError("another torch profiler is running in this process, and torch has one at a time")
        quiet_profiler()
        if not self._warmup:
            self._start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if self._profiler is not None and error is None:
            self._finish()
        elif self._profiler is not None:
            self._profiler.stop()

    def step(self) -> None:
        """A step is over."""
        self._seen += 1
        if self._profiler is None and self._seen == self._warmup:
            self._start()
        elif self._profiler is not None and self._seen == self._warmup + self._wanted:
            self._finish()

    def over(self, items: Iterable[Item]) -> Iterator[Item]:
        """The same items; each is a step."""
        for item in items:
            yield item
            self.step()

    def _start(self) -> None:
        kinds = torch.profiler.ProfilerActivity
        self._profiler = torch.profiler.profile(
            activities=[kinds.CPU, kinds.CUDA] if self._on_gpu else [kinds.CPU], acc_events=True
        )
        self._profiler.start()
        self._began, self._waited_s = self._now(), waiting().total_s()

    def _now(self) -> float:
        if self._on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    def _finish(self) -> None:
        seconds = self._now() - self._began
        data_wait_s = waiting().total_s() - self._waited_s
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        rank = session().rank
        self.folder.mkdir(parents=True, exist_ok=True)
        self.summary = Summary(
            rank=rank,
            device=torch.cuda.get_device_name() if self._on_gpu else "CPU",
            steps=self._seen - self._warmup,
            seconds=seconds,
            data_wait_s=data_wait_s,
            shares=shares_of(profiler, on_gpu=self._on_gpu, span_s=seconds),
            operators=_operators(profiler, on_gpu=self._on_gpu),
            trace=self._write_trace(profiler, f"rank-{rank}.trace.json.gz"),
        )
        (self.folder / f"rank-{rank}.txt").write_text(render_summary(self.summary))

    def _write_trace(self, profiler: Any, name: str) -> str:
        count = len(profiler.profiler.kineto_results.events())
        if count > self._most_events:
            return f"not written: {count:,} events, and {self._most_events:,} are the limit; profile fewer steps"
        # Whole or not at all: a file that is being written has another name.
        part = self.folder / f"part-{name}"
        profiler.export_chrome_trace(str(part))
        part.replace(self.folder / name)
        return name


def profile(
    *, steps: int = 5, warmup: int = 2, folder: Path | str | None = None, most_events: int = MOST_EVENTS
) -> Profile:
    """Record `steps` steps after `warmup` others; files go to `folder`, `profile` in the run's output if None."""
    for name, value, least in (("steps", steps, 1), ("warmup", warmup, 0)):
        if value < least:
            raise ValueError(f"{name} is {value}, but must be a whole number from {least}")
    where = Path(folder) if folder is not None else session().output_dir / "profile"
    return Profile(steps=steps, warmup=warmup, folder=where, most_events=most_events)


def render_summary(summary: Summary) -> str:
    whole_s = max(summary.seconds, 1e-9)
    waiting_share = min(1.0, summary.data_wait_s / whole_s)
    exposed = min(summary.shares.exposed, 1.0 - waiting_share)
    plural = "s" if summary.steps != 1 else ""
    lines = [
        f"Rank {summary.rank} on {summary.device}: {summary.steps} step{plural} in {summary.seconds:.3f} s",
        f"  waiting for data             {waiting_share:6.1%}",
        f"  compute and all else         {1.0 - waiting_share - exposed:6.1%}",
        f"  communication, not hidden    {exposed:6.1%}",
        f"  communication in all         {summary.shares.communication:6.1%}, "
        f"of which {summary.shares.overlapped:.0%} while computing",
        f"Trace (chrome://tracing, ui.perfetto.dev): {summary.trace}",
        "",
        f"{'operator':<60}  {'calls':>8}  {'ms/step':>9}  {'share':>6}",
    ]
    for operator in summary.operators:
        name = operator.name if len(operator.name) <= 60 else operator.name[:57] + "..."
        each_ms = 1000 * operator.seconds / max(1, summary.steps)
        lines.append(f"{name:<60}  {operator.calls:>8}  {each_ms:>9.3f}  {operator.seconds / whole_s:>6.1%}")
    return "\n".join(lines) + "\n"


def _operators(profiler: Any, *, on_gpu: bool) -> list[Operator]:
    found = [
        Operator(
            name=row.key,
            calls=row.count,
            seconds=(row.self_device_time_total if on_gpu else row.self_cpu_time_total) / 1e6,
        )
        for row in profiler.key_averages()
        if row.device_type == DeviceType.CPU  # what was called; its kernels would count the same time once more
    ]
    found.sort(key=lambda operator: operator.seconds, reverse=True)
    return [operator for operator in found[:_ROWS] if operator.seconds > 0]
