"""Where output goes and how it looks: colour on a terminal, plain text in a pipe, notices of ours on stderr only."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, TextIO

_CODES = {
    "bold": 1, "dim": 2, "inverse": 7, "red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36,
    "bright_green": 92, "bright_blue": 94, "bright_magenta": 95, "bright_cyan": 96,
}  # fmt: skip
STATE_STYLES = {
    "queued": ("yellow",),
    "starting": ("cyan",),
    "running": ("cyan", "bold"),
    "recovering": ("magenta",),
    "unknown": ("red",),
    "succeeded": ("green", "bold"),
    "failed": ("red", "bold"),
    "cancelled": ("yellow", "bold"),
}
STATE_MARKS = {"succeeded": "✓", "failed": "✗", "cancelled": "■", "queued": "…", "recovering": "↻"}


class Paint(NamedTuple):
    """Colours text if `on`, else leaves it alone."""

    on: bool

    def __call__(self, text: str, *styles: str) -> str:
        if not self.on or not styles or not text:
            return text
        return f"\x1b[{';'.join(str(_CODES[style]) for style in styles)}m{text}\x1b[0m"

    def state(self, state: str) -> str:
        return self(state, *STATE_STYLES.get(state, ()))


def colours(stream: TextIO) -> bool:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def paint_for(stream: TextIO) -> Paint:
    return Paint(colours(stream))


def width_of(stream: TextIO) -> int:
    """Columns of a terminal. A pipe has no edge, and nothing is cut off in it."""
    if not stream.isatty():
        return 100_000
    import shutil  # long to load

    return shutil.get_terminal_size((80, 24)).columns


def say(text: str = "") -> None:
    """A line of the answer, on stdout."""
    print(text, file=sys.stdout, flush=True)


def say_json(value: Any) -> None:
    import json

    say(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def notice(text: str) -> None:
    """A remark of ours, on stderr: stdout belongs to the answer."""
    print(paint_for(sys.stderr)(text, "dim"), file=sys.stderr, flush=True)


def next_steps(*commands: str) -> None:
    """What to type next; only where somebody reads it."""
    if sys.stdout.isatty():
        say(next_line(commands, sys.stdout))


def next_line(commands: Sequence[str], stream: TextIO) -> str:
    """As many commands as fit on a line."""
    line = f"next: {commands[0]}"
    for command in commands[1:]:
        if cells(line) + cells(command) + 3 < width_of(stream):
            line += f" · {command}"
    return paint_for(stream)(line, "dim")


def cells(text: str) -> int:
    """Columns that plain text takes: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    import unicodedata  # its tables are for those who need them

    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def fit(text: str, width: int) -> str:
    """`text` if it fits, else its beginning and an ellipsis."""
    if cells(text) <= width:
        return text
    kept, used = "", 1
    for char in text:
        used += cells(char)
        if used > width:
            break
        kept += char
    return kept + "…" if width > 0 else ""


class Cell(NamedTuple):
    text: str
    styles: tuple[str, ...] = ()


def table(headers: Sequence[str], rows: Sequence[Sequence[Cell | str]], *, flexible: int, stream: TextIO) -> str:
    """Aligned columns. On a terminal that is too narrow the column `flexible` gives way first, then the last ones."""
    paint, width = paint_for(stream), width_of(stream)
    cellrows = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    widths = [
        max([cells(header), *(cells(row[index].text) for row in cellrows)]) for index, header in enumerate(headers)
    ]
    over = sum(widths) + 2 * (len(widths) - 1) - width
    if over > 0:
        widths[flexible] = max(8, widths[flexible] - over)
    shown = len(widths)
    while shown > 2 and sum(widths[:shown]) + 2 * (shown - 1) > width:
        shown -= 1
    lines = []
    for row in [[Cell(header, ("dim",)) for header in headers], *cellrows]:
        parts = []
        for index, cell in enumerate(row[:shown]):
            text = fit(cell.text, widths[index])
            gap = "" if index == shown - 1 else " " * (widths[index] - cells(text))
            parts.append(paint(text, *cell.styles) + gap)
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)
