"""`watch`: one run, full screen and live."""

from __future__ import annotations

import collections
import contextlib
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import typer

from windlass.cli import options
from windlass.cli.charts import bar, braille, number
from windlass.cli.connection import open_client
from windlass.cli.loglines import LogFormatter
from windlass.cli.status import Status, clock
from windlass.cli.terminal import Paint, colours, next_steps
from windlass.core.errors import InvalidInput, WindlassError
from windlass.core.names import metric_place
from windlass.core.quantities import format_duration, format_size

if TYPE_CHECKING:
    from rich.console import RenderableType

    from windlass.client import Metric, Run, Update

_REFRESH_S = 0.2
_METRICS_EVERY_S = 1.0
_KEPT_LINES = 300
_MOST_CHARTS = 3  # side by side
_MOST_POINTS = 1_000  # of each: more than a terminal has columns


def watch(ctx: typer.Context, run: options.RunRef) -> None:
    """Watch a run on the full screen: progress, metrics, resource use and the last lines. q leaves."""
    if not sys.stdout.isatty():
        raise InvalidInput("watch needs a terminal", hint=f"in a pipe, use `windlass logs -f {run}`")
    found = open_client(ctx).get(run)
    Watcher(found).loop()
    found.refresh()
    from windlass.cli.show import show_end

    if found.is_over:
        show_end(found)
    else:
        next_steps(f"windlass logs -f {found.id}", f"windlass cancel {found.id}")


class Watcher:
    def __init__(self, run: Run) -> None:
        self.run = run
        self.status = Status.of(run.view)
        self.status.usage = run.view.usage
        self.lines: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        self.metrics: dict[str, Metric] = {}
        self.over = run.is_over
        self._format = LogFormatter(paint=Paint(colours(sys.stdout)), ranks=run.world_size > 1)
        self._updates: queue.Queue[Update | bool | Exception] = queue.Queue(maxsize=10_000)
        self._metrics_at = 0.0

    def loop(self) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(highlight=False)
        threading.Thread(target=self._read, name="windlass-stream", daemon=True).start()
        with (
            _keys() as pressed,
            contextlib.suppress(KeyboardInterrupt),
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            while not pressed("q"):
                self._take()
                self._fetch_metrics()
                live.update(self._screen(console.width, console.height), refresh=True)

    def _read(self) -> None:
        try:
            for update in self.run.follow(tail=_KEPT_LINES, on_gap=self._updates.put):
                self._updates.put(update)
        except Exception as error:  # handed over to the main thread
            self._updates.put(error)

    def _take(self) -> None:
        with contextlib.suppress(queue.Empty):
            update = self._updates.get(timeout=_REFRESH_S)
            for _ in range(2_000):
                self._see(update)
                update = self._updates.get_nowait()

    def _see(self, update: Update | bool | Exception) -> None:
        if isinstance(update, Exception):
            raise update
        if isinstance(update, bool):
            self.status.connected = not update
        elif update.kind == "log":
            if (shown := self._format.feed(update.value)) is not None:
                self.lines.append(shown.text)
        else:
            self.status.see(update)
            if update.kind == "end":
                self.over = True
                self._metrics_at = 0.0

    def _fetch_metrics(self) -> None:
        now = time.monotonic()
        if now - self._metrics_at < (_METRICS_EVERY_S if not self.over else 3_600):
            return
        self._metrics_at = now
        with contextlib.suppress(WindlassError):  # the stream tells when the server is away
            self.metrics = self.run.metrics(limit=_MOST_CHARTS, most=_MOST_POINTS)

    def _screen(self, width: int, height: int) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        top = [*self._header(width), ""]
        charts = self._charts(width, room=max(0, (height - len(top)) // 2))
        use = self._usage(width)
        rows = [*top, *charts, *use]
        left = height - len(rows) - 2
        log = ["─" * width, *([*self.lines, self._format.unfinished] if self._format.unfinished else self.lines)]
        log = [log[0], *log[1:][-left:]] if left > 0 else []
        foot = "q leaves" + ("" if self.over else "; the run goes on")
        texts = [Text.from_ansi(row, no_wrap=True, overflow="ellipsis") for row in [*rows, *log]]
        texts += [Text("") for _ in range(height - len(texts) - 1)]
        return Group(*texts[: height - 1], Text(foot, style="dim"))

    def _header(self, width: int) -> list[str]:
        paint = Paint(colours(sys.stdout))
        status = self.status
        took = f"  {clock(time.time() - status.started_at)}" if status.started_at and not self.over else ""
        if self.over and self.run.view.duration_s is not None:
            took = f"  {format_duration(self.run.view.duration_s)}"
        words = f"{paint(self.run.name, 'bold')}  {paint(self.run.id, 'dim')}  {paint.state(status.word)}{took}"
        if status.attempts > 1:
            words += paint(f"  attempt {status.attempts}", "magenta")
        if not status.connected:
            words += paint("  connection lost, reconnecting", "red")
        lines = [words]
        if status.alert:
            lines.append(paint(f"! {status.alert}"[:width], "yellow"))
        if status.saved:
            step, at = status.saved
            lines.append(paint(f"saved at step {step:,}, {format_duration(max(0.0, time.time() - at))} ago", "dim"))
        if status.progress:
            step, total = status.progress["step"], status.progress.get("total")
            text = f"{step:,}/{total:,}" if total else f"step {step:,}"
            if total and status.progress.get("eta_s") and not self.over:
                text += f"  eta {clock(status.progress['eta_s'])}"
            if total:
                text = f"{paint(bar(step / total, max(10, min(60, width - len(text) - 3))), 'cyan')}  {text}"
            lines.append(text)
        return lines

    def _charts(self, width: int, room: int) -> list[str]:
        """Charts side by side, as many as there is room for; loss first."""
        paint = Paint(colours(sys.stdout))
        names = sorted(self.metrics, key=metric_place)
        across = max(1, min(width // 36, len(names), _MOST_CHARTS))
        height = min(6, room - 2)
        if not names or height < 2:
            return []
        each = (width - 2 * (across - 1)) // across
        rows = [""] * (height + 1)
        for name in names[:across]:
            metric = self.metrics[name]
            title = f"{name}  {number(metric.last)}"[:each]
            drawn = braille(metric.values, each, height)
            rows[0] += paint(title, "bold") + " " * (each - len(title) + 2)
            for index, row in enumerate(drawn, start=1):
                rows[index] += paint(row, "cyan") + "  "
        return [*(row.removesuffix("  ") for row in rows), ""]

    def _usage(self, width: int) -> list[str]:
        paint = Paint(colours(sys.stdout))
        usage: Mapping[str, Any] = self.status.usage or {}
        rows = []
        for rank in list(usage.get("ranks") or [])[:8]:
            cpu, rss = rank.get("cpu_percent") or 0.0, rank.get("rss_bytes") or 0
            text = f"rank {rank.get('rank')}  cpu {bar(cpu / 100, 10)} {cpu:4.0f}%  mem {format_size(rss)}"
            rows.append(paint(text[:width], "dim"))
        for gpu in list(usage.get("gpus") or [])[:8]:
            busy = gpu.get("utilisation_percent", gpu.get("utilization_percent")) or 0.0
            used, total = gpu.get("memory_used_bytes") or 0, gpu.get("memory_total_bytes") or 0
            memory = f"{format_size(used)} of {format_size(total)}" if total else format_size(used)
            rows.append(
                paint(f"gpu {gpu.get('index')}   {bar(busy / 100, 10)} {busy:4.0f}%  mem {memory}"[:width], "dim")
            )
        return rows


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """A function that tells whether a key was pressed, without waiting for Enter."""
    if not sys.stdin.isatty():
        yield lambda _key: False
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def pressed(key: str) -> bool:
        ready, _, _ = select.select([fd], [], [], 0)
        return bool(ready) and key in os.read(fd, 64).decode(errors="replace").lower()

    try:
        tty.setcbreak(fd)
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
