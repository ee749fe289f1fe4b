"""Which frames of a traceback are the program's own, and what of a long one is shown. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple, Sequence

_LIBRARY = r"/(site|dist)-packages/|/lib(64)?/python\d|^<"
# Wherever they are: in a library's place, in the folder of an editable installation, in the code that a recipe brings.
_OURS = r"/windlass/(agent|blobs|client|core|job|planning|wire)/"
_RECIPES = "/windlass/job/recipes/"
_FRAME = r'\s+File "(?P<file>[^"]*)", line \d+'
ELLIPSIS = "  ..."


def own_places(files: Sequence[str]) -> list[int]:
    """Places of the frames that are the program's own, by their files: no library's, and none of Windlass. A recipe is
    the program where nothing else is. Where all are of Windlass or of libraries, the former are, or else all."""
    foreign = [place for place, file in enumerate(files) if not re.search(_LIBRARY, file)]
    own = [place for place in foreign if not re.search(_OURS, files[place])]
    own = own or [place for place, file in enumerate(files) if _RECIPES in file]
    return own or foreign or list(range(len(files)))


def abridged(lines: Sequence[str], most: int) -> list[str]:
    """A traceback, or a chain of some, in about `most` lines at most. If it has more, runs of frames of libraries go,
    but for the one that raised the error; then, of what is still too long, lines in the middle."""
    if len(lines) <= most:
        return list(lines)
    shown: list[str] = []
    run: list[_Part] = []
    for part in [*_parts(lines), _Part(None, [])]:
        if part.file is not None:
            run.append(part)
            continue
        shown += [*_without_libraries(run), *part.lines]
        run = []
    return shown if len(shown) <= most else _without_middle(shown, most)


class _Part(NamedTuple):
    """A frame with its source, or one line that belongs to none."""

    file: str | None
    lines: list[str]


def _parts(lines: Sequence[str]) -> list[_Part]:
    parts: list[_Part] = []
    for line in lines:
        frame = re.match(_FRAME, line)
        if frame or line == ELLIPSIS:  # frames that have gone already
            parts.append(_Part(frame["file"] if frame else "<>", [line]))
        elif parts and parts[-1].file is not None and line[:1].isspace():
            parts[-1].lines.append(line)
        else:
            parts.append(_Part(None, [line]))
    return parts


def _without_libraries(frames: Sequence[_Part]) -> list[str]:
    kept = {*own_places([frame.file or "" for frame in frames]), len(frames) - 1}
    shown: list[str] = []
    for place, frame in enumerate(frames):
        if place in kept:
            shown += frame.lines
        elif not shown or shown[-1] != ELLIPSIS:
            shown.append(ELLIPSIS)
    return shown


def _without_middle(lines: Sequence[str], most: int) -> list[str]:
    """The end tells more than the beginning; it begins with a whole frame."""
    head = most // 3
    start = len(lines) - (most - head - 1)
    while lines[head - 1] == ELLIPSIS:
        head -= 1
    while start < len(lines) - 1 and (lines[start].startswith("    ") or lines[start] == ELLIPSIS):
        start += 1
    return [*lines[:head], ELLIPSIS, *lines[start:]]
