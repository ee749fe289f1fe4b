"""Lines that scroll by above a few that stay: a live status under a running log, without taking over the screen."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TextIO

from windlass.cli.terminal import cells, width_of

_STYLE = re.compile(r"(\x1b\[[0-9;]*m)")
_ERASE_LINE = "\r\x1b[2K"


class Pane:
    """Everything goes out in one write, so nothing flickers, and the staying rows never wrap. Without `live` there are
    no staying rows and stderr lines go to stderr."""

    def __init__(self, *, live: bool, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.live = live
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._rows: list[str] = []

    def show(self, lines: Sequence[tuple[str, str]], rows: Sequence[str] | None = None) -> None:
        """Print `lines` of (stream, text) and replace the staying rows, if given."""
        if not self.live:
            self._plain(lines)
            return
        fitted = self._rows if rows is None else [clip(row, width_of(self._out) - 1) for row in rows]
        if not lines and fitted == self._rows:
            return
        text = "".join(f"{line}\n" for _, line in lines)
        self._out.write(self._erased() + text + "\n".join(fitted))
        self._out.flush()
        self._rows = list(fitted)

    def clear(self) -> None:
        if self._rows:
            self._out.write(self._erased())
            self._out.flush()
            self._rows = []

    def _erased(self) -> str:
        if not self._rows:
            return ""
        return _ERASE_LINE + ("\x1b[1A" + _ERASE_LINE) * (len(self._rows) - 1)

    def _plain(self, lines: Sequence[tuple[str, str]]) -> None:
        before: TextIO | None = None
        for stream, line in lines:
            target = self._err if stream == "stderr" else self._out
            if before is not None and target is not before:
                before.flush()  # keep the order where both end up in one file
            target.write(line + "\n")
            before = target
        if before is not None:
            before.flush()


def clip(text: str, width: int) -> str:
    """The beginning of styled text that fits into `width` columns; styles cost none."""
    kept, used = [], 0
    for part in _STYLE.split(text):
        if part.startswith("\x1b"):
            kept.append(part)
            continue
        for char in part.replace("\t", " "):
            used += cells(char)
            if used > width:
                return "".join(kept) + "\x1b[0m"
            kept.append(char)
    return "".join(kept)
