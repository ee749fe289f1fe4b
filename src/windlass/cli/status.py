"""What is known of a followed run, and the one line that says it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from windlass.cli.charts import bar, number
from windlass.cli.terminal import Paint, cells
from windlass.core.quantities import format_size

if TYPE_CHECKING:
    from windlass.client import Update
    from windlass.wire.runs import EventView, RunSummary

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_MAIN_METRIC = "loss"


@dataclass(slots=True, kw_only=True)
class Status:
    state: str
    cancelling: bool = False
    unknown: bool = False
    submitted_at: float = 0.0
    started_at: float | None = None
    attempts: int = 0
    progress: Mapping[str, Any] | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    usage: Mapping[str, Any] | None = None
    waiting_for: str = ""
    connected: bool = True
    alert: str = ""  # the last one
    saved: tuple[int, float] | None = None  # step and time of the last checkpoint

    @classmethod
    def of(cls, run: RunSummary) -> Status:
        status = cls(state=run.state)
        status.see_run(run)
        return status

    def see_run(self, run: RunSummary) -> None:
        self.state, self.cancelling, self.unknown = run.state, run.cancelling, run.unknown_since is not None
        self.submitted_at, self.started_at, self.attempts = run.submitted_at, run.started_at, run.attempts
        if run.progress is not None:
            self.progress = run.progress.model_dump()

    def see(self, update: Update) -> None:
        if update.kind in ("run", "end"):
            self.see_run(update.value)
        elif update.kind == "event":
            self._see_event(update.value)
        elif update.kind == "progress":
            self.progress = update.value.get("progress") or self.progress
            self.metrics = update.value.get("metrics") or self.metrics
            self.usage = update.value.get("usage") or self.usage

    def _see_event(self, event: EventView) -> None:
        if event.kind == "alert":
            self.alert = event.message
        elif event.kind == "checkpoint" and event.data.get("state") == "available":
            self.saved = (event.data["step"], event.at)

    @property
    def word(self) -> str:
        if self.state not in ("starting", "running"):
            return self.state
        return "cancelling" if self.cancelling else "unknown" if self.unknown else self.state

    def line(self, paint: Paint, width: int, now: float) -> str:
        """As many facts as fit, the most important first."""
        spinner = _SPINNER[int(time.monotonic() * 10) % len(_SPINNER)]
        mark = paint(spinner, "cyan") if self.connected else paint("!", "red", "bold")
        head = f"{mark} {paint.state(self.word)}"
        room = width - 3 - cells(self.word)
        if not self.connected:
            return head + paint("  connection lost, reconnecting", "red")
        if self.state in ("queued", "recovering"):
            return head + paint(f"  {clock(now - self.submitted_at)}  {self.waiting_for}", "dim")
        parts = []
        for text, styles in self._facts(now, bar_width=20 if width >= 90 else 12):
            room -= cells(text) + 2
            if room < 0:
                break
            parts.append(paint(text, *styles))
        return "  ".join([head, *parts])

    def sentence(self) -> str:
        """The same for a log file: no bar, no colours."""
        facts = [text for text, styles in self._facts(time.time(), bar_width=0) if text and "dim" not in styles]
        return "  ".join([self.word, *facts])

    def _facts(self, now: float, bar_width: int) -> list[tuple[str, tuple[str, ...]]]:
        facts: list[tuple[str, tuple[str, ...]]] = []
        eta = ""
        if self.started_at is not None:
            facts.append((clock(now - self.started_at), ("dim",)))
        if self.progress:
            step, total = self.progress["step"], self.progress.get("total")
            if total:
                facts.append((bar(step / total, bar_width), ("cyan",)))
                facts.append((f"{step:,}/{total:,}", ()))
                if self.progress.get("eta_s") is not None:
                    eta = f"eta {clock(self.progress['eta_s'])}"
            else:
                facts.append((f"step {step:,}", ()))
        if (main := main_metric(self.metrics)) is not None:
            facts.append((f"{main} {number(self.metrics[main])}", ("bold",)))
        if eta:
            facts.append((eta, ()))
        if self.usage and self.usage.get("rss_bytes"):
            use = f"cpu {self.usage.get('cpu_percent') or 0:.0f}%  mem {format_size(self.usage['rss_bytes'])}"
            facts.append((use, ("dim",)))
        if self.attempts > 1:
            facts.append((f"attempt {self.attempts}", ("magenta",)))
        return facts


def share_done(run: RunSummary) -> float | None:
    """Of 1. All of it is done at the last step, which one less than the total is where steps are counted from 0 and the
    run is well over."""
    if run.progress is None or not run.progress.total:
        return None
    step, total = run.progress.step, run.progress.total
    if step >= total or (run.state == "succeeded" and step + 1 == total):
        return 1.0
    return min(0.99, step / total)


def progress_words(run: RunSummary) -> str | None:
    """`step 40 of 200 (20%), eta 12:34`."""
    if run.progress is None:
        return None
    words = f"step {run.progress.step:,}"
    done = share_done(run)
    if done is not None:
        words += f" of {run.progress.total:,} ({done:.0%})"
    return words + (f", {eta}" if (eta := eta_words(run)) else "")


def eta_words(run: RunSummary) -> str:
    """Of a run that is not over, if it is known."""
    if run.progress is None or run.progress.eta_s is None or run.ended_at is not None:
        return ""
    return f"eta {clock(run.progress.eta_s)}"


def clock(seconds: float) -> str:
    """A time that runs, without jumping about in width: 0:07, 12:34, 1:02:03."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def main_metric(metrics: Mapping[str, Any]) -> str | None:
    """The metric to show where there is room for one."""
    if _MAIN_METRIC in metrics:
        return _MAIN_METRIC
    return next((name for name in metrics if name.rsplit("/", 1)[-1] == _MAIN_METRIC), next(iter(metrics), None))
