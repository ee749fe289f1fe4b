"""What a terminal shows of a line that a program has written: the newest state of a progress bar, without what moves
the cursor, rings or names the window; and the words alone, without colours. Pure.
"""

from __future__ import annotations

import re

# Colours end in m; every other sequence moves, clears or sets something.
_MOVES = re.compile(
    r"\x1b(?:\[[0-9;?]*[A-Za-ln-z]|[()][A-Z0-9]|[=>78DEHMc]|\][^\x07\x1b]*(?:\x07|\x1b\\))"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]"
)
_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")


def settled(text: str) -> str:
    """What is left of a line with carriage returns in it: the last that was written over the rest."""
    if "\r" not in text:
        return text
    parts = [part for part in text.split("\r") if part]
    return parts[-1] if parts else ""


def without_moves(text: str) -> str:
    """Colours stay."""
    return text if text.isprintable() else _MOVES.sub("", text)


def words_of(text: str) -> str:
    """Neither movements nor colours."""
    return text if text.isprintable() else _COLOURS.sub("", _MOVES.sub("", text))
