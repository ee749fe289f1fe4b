"""Log lines as they are shown: unfinished lines put together, progress bars settled, ranks told apart."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windlass.cli.terminal import Paint
from windlass.core.shown import settled, without_moves

if TYPE_CHECKING:
    from windlass.wire.runs import LogLine

_RANK_STYLES = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    text: str  # without the line's end
    stream: str


class LogFormatter:
    """`feed` gives a finished line to print, or None while it goes on; `unfinished` is what it looks like so far."""

    def __init__(self, *, paint: Paint, ranks: bool, timestamps: bool = False, as_written: bool = False) -> None:
        """`as_written`: with what moves the cursor, which on a terminal would tear our own display."""
        self._paint = paint
        self._ranks = ranks
        self._timestamps = timestamps
        self._as_written = as_written
        self._open: dict[tuple[int, int, str], tuple[LogLine, str]] = {}
        self.unfinished = ""

    def feed(self, line: LogLine) -> Shown | None:
        key = (line.attempt, line.rank, line.stream)
        first, before = self._open.pop(key, (line, ""))
        text = before + line.text
        if line.partial:
            # Of a progress bar only the newest state counts, so a long one does not grow in memory.
            text = "\r" + settled(text) if "\r" in text else text
            self._open[key] = (first, text)
            self.unfinished = self._rendered(first, settled(text))
            return None
        self.unfinished = ""
        return Shown(text=self._rendered(first, settled(text)), stream=line.stream)

    def drain(self) -> list[Shown]:
        """What never got its line end."""
        left = [
            Shown(text=self._rendered(line, settled(text)), stream=line.stream) for line, text in self._open.values()
        ]
        self._open.clear()
        self.unfinished = ""
        return left

    def _rendered(self, line: LogLine, text: str) -> str:
        if not self._as_written:
            text = without_moves(text)
        if line.stream == "stderr" and "\x1b" not in text:
            text = self._paint(text, "dim", "red")
        elif self._paint.on and "\x1b" in text:
            text += "\x1b[0m"
        prefix = ""
        if self._timestamps:
            stamp = time.strftime("%H:%M:%S", time.localtime(line.at)) + f".{int(line.at % 1 * 1000):03d}"
            prefix = self._paint(stamp, "dim") + " "
        if self._ranks:
            prefix += self._paint(f"[{line.rank}]", _RANK_STYLES[line.rank % len(_RANK_STYLES)]) + " "
        return prefix + text
