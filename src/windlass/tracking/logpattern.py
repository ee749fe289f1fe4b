"""What lines of a log somebody looks for: a regular expression, as `grep -E` has it, that cannot take for ever. Pure.

Python's own engine is the faster one, but repeats and many choices can keep it busy without end; patterns with those
go to ours. Lines without the text that every match must hold are passed over by either.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from windlass.core.errors import InvalidInput
from windlass.core.patterns import pattern_of
from windlass.core.shown import settled, words_of

LONGEST_PATTERN = 200
_SEARCHED_BYTES = 4_096  # of a line
_MOST_WAYS = 100


@dataclass(frozen=True, slots=True)
class LogPattern:
    literal: bytes  # what every line that matches holds; may be empty
    ignores_case: bool
    _is_in: Callable[[bytes], bool]

    @classmethod
    def parse(cls, text: str, *, ignore_case: bool = False) -> LogPattern:
        """Raises InvalidInput."""
        if not 0 < len(text) <= LONGEST_PATTERN:
            raise InvalidInput(f"a pattern has 1 to {LONGEST_PATTERN} characters, not {len(text)}")
        ours = pattern_of(f"(?i:{text})" if ignore_case else text)
        tree = parser.parse(text)
        literal = b"" if tree.state.flags & re.IGNORECASE else _literal(tree, ignore_case=ignore_case)
        if _ways(tree) > _MOST_WAYS:
            return cls(literal, ignore_case, lambda line: ours.is_in(line.decode("utf-8", "replace")))
        expression = re.compile(text, re.IGNORECASE if ignore_case else 0)
        return cls(literal, ignore_case, lambda line: expression.search(line.decode("utf-8", "replace")) is not None)

    def matches(self, line: bytes) -> bool:
        """By what a terminal shows of it."""
        return self.may_be_in(line) and self._is_in(_shown(line)[:_SEARCHED_BYTES])

    def may_be_in(self, piece: bytes) -> bool:
        """False: no line of it matches."""
        if not self.literal or self.literal in (piece.lower() if self.ignores_case else piece):
            return True
        return b"\x1b" in piece  # a colour may stand in the middle of the words


def _shown(line: bytes) -> bytes:
    if b"\r" not in line and b"\x1b" not in line:
        return line
    return words_of(settled(line.decode("utf-8", "replace"))).encode()


def _literal(tree: Any, *, ignore_case: bool) -> bytes:
    """The longest text that stands in the pattern as it is."""
    runs = [""]
    for code, argument in tree:
        if code is codes.LITERAL and (argument < 128 or not ignore_case):
            runs[-1] += chr(argument)
        else:
            runs.append("")
    longest = max(runs, key=len)
    return (longest.lower() if ignore_case else longest).encode("utf-8", "replace")


def _ways(tree: Any) -> float:
    """In how many ways the pattern can be gone through, at most: what is optional, and choices, double with each."""
    ways = 1.0
    for code, arguments in tree:
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            ways *= 2 if arguments[1] == 1 else math.inf
        elif code is codes.BRANCH:
            ways *= len(arguments[1])
        for part in _parts(arguments):
            ways *= _ways(part)
    return ways


def _parts(arguments: Any) -> list[Any]:
    """The expressions within one part of an expression, however deep its kind keeps them."""
    if isinstance(arguments, parser.SubPattern):
        return [arguments]
    if isinstance(arguments, (tuple, list)):
        return [part for one in arguments for part in _parts(one)]
    return []
