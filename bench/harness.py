"""What every benchmark shares: options, alternating arms, a place that is gone afterwards, and the report.

A benchmark prints tables for people and, as its last line, one JSON object for programs.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import windlass
from windlass.agent import kernel

MARK = "BENCH_WORKSPACE"  # in the environment of everything that a benchmark starts
BIN = Path(sys.executable).parent
_PACKAGES = ("torch", "ray", "submitit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number with a target. `better` says on which side of the target it should lie."""

    value: float
    target: float
    better: Literal["lower", "higher"]

    @property
    def met(self) -> bool:
        return self.value <= self.target if self.better == "lower" else self.value >= self.target

    def as_json(self) -> dict[str, float | str]:
        return {"value": float(f"{self.value:.4g}"), "target": self.target, "better": self.better}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(slots=True, kw_only=True)
class Report:
    bench: str
    figures: dict[str, Figure] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def render(self) -> str:
        """Tables and notes, then the JSON as the last line."""
        parts = [f"**{table.title}**\n\n{render_table(table.header, table.rows)}" for table in self.tables]
        parts += [f"- {note}" for note in self.notes]
        figures = {key: figure.as_json() for key, figure in self.figures.items()}
        return "\n\n".join([*parts, json.dumps({"bench": self.bench, "figures": figures})])


def render_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Markdown that is aligned, so that it reads as well on a terminal."""
    lines = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    shown = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([shown[0], rule, *shown[1:]])


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def machine_facts() -> dict[str, str]:
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{os.cpu_count()} cores ({_cpu_model()}), {_memory_gb():.0f} GB memory, Linux {platform.release()}",
        "load": f"{os.getloadavg()[0]:.1f} (1 minute, before the benchmarks)",
        "python": platform.python_version(),
        "windlass": windlass.__version__,
    }
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            facts[package] = importlib.metadata.version(package)
    return facts


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return " ".join(line.partition(":")[2].split())
    return platform.machine()


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


# ---- measuring -----------------------------------------------------------------------------------------------------


def alternate(arms: Mapping[str, Callable[[], float]], *, rounds: int) -> dict[str, list[float]]:
    """A B C A B C ...: what disturbs the machine for a while disturbs every arm."""
    measured: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(1, rounds + 1):
        for name, measure in arms.items():
            measured[name].append(measure())
            tell(f"round {number}/{rounds}  {name}: {measured[name][-1]:.4g}")
    return measured


def medians(measured: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in measured.items()}


def median_interval(groups: Sequence[Sequence[float]], *, draws: int = 2000) -> tuple[float, float]:
    """A 95% bootstrap interval of the median of `groups`' medians: groups are drawn, then values within each."""
    source = random.Random(0)
    found = sorted(
        statistics.median(
            statistics.median(source.choices(group, k=len(group))) for group in source.choices(groups, k=len(groups))
        )
        for _ in range(draws)
    )
    return found[int(0.025 * draws)], found[int(0.975 * draws)]


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def tell(text: str) -> None:
    """Progress, which is not part of the result."""
    print(text, file=sys.stderr, flush=True)


# ---- a place to work in ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """A folder of its own. When the block ends, however it ends, the folder and every process started in it are gone.

    The environment is that of an activated virtual environment, without anybody's Windlass settings.
    """
    folder = Path(tempfile.mkdtemp(prefix="wlb-"))  # short: sockets live in it
    mark = uuid.uuid4().hex
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith(("WINDLASS_", "RAY_"))]:
        del os.environ[name]
    os.environ |= {
        MARK: mark,
        "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "VIRTUAL_ENV": sys.prefix,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": str(folder / "r"),
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }
    handlers = {number: signal.signal(number, _leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield folder
    finally:
        end_marked(mark)
        os.environ.clear()
        os.environ |= before
        shutil.rmtree(folder, ignore_errors=True)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _leave(number: int, _frame: object) -> None:
    """Unwind, once: a second signal must not disturb the cleaning up that the first one began."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    tell(f"ended by {signal.Signals(number).name}")
    sys.exit(128 + number)


def end_marked(mark: str, *, timeout_s: float = 20.0) -> None:
    """Kill every process that carries the mark in its environment."""
    deadline = time.monotonic() + timeout_s
    while left := _marked(mark):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {left} do not end")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _marked(mark: str) -> list[int]:
    wanted = f"{MARK}={mark}".encode()
    found = []
    for pid in kernel.all_pids():
        state = kernel.stat(pid)
        if pid == os.getpid() or state is None or state.state in "ZX":
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


# ---- the script's frame ----------------------------------------------------------------------------------------------


def options(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions; a few minutes at most")
    return parser


def finish(report: Report) -> None:
    print(report.render(), flush=True)
