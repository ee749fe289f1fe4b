"""What lines of a log somebody looks for: a regular expression, as `grep -E` has it, that cannot take for ever. Pure.

Python's expressions try again and again; where a repeat holds another one, the time can double with every character.
Such ones are refused, and so are references to what was found before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from windlass.core.errors import InvalidInput

LONGEST_PATTERN = 200
_SEARCHED_BYTES = 4_096  # of a line
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
_MANY = 20  # more repetitions than this count as any number


@dataclass(frozen=True, slots=True)
class LogPattern:
    expression: re.Pattern[bytes]
    literal: bytes | None  # what every line that matches holds, if it is that simple

    @classmethod
    def parse(cls, text: str, *, ignore_case: bool = False) -> LogPattern:
        if not 0 < len(text) <= LONGEST_PATTERN:
            raise InvalidInput(f"a pattern has 1 to {LONGEST_PATTERN} characters, not {len(text)}")
        try:
            tree = parser.parse(text)
            expression = re.compile(text.encode(), re.IGNORECASE if ignore_case else 0)
        except (re.error, OverflowError, RecursionError, UnicodeEncodeError) as error:
            raise InvalidInput(
                f"{text!r} is no regular expression: {error}", hint="write \\ before . * + ? ( ["
            ) from None
        if problem := next(_problems(tree, repeated=False), None):
            raise InvalidInput(f"{text!r} {problem}, which could take for ever", hint="write it more simply")
        plain = not ignore_case and all(code is codes.LITERAL for code, _ in tree)
        return cls(expression, text.encode() if plain and "\\" not in text else None)

    def matches(self, line: bytes) -> bool:
        return self.expression.search(line, 0, _SEARCHED_BYTES) is not None

    def may_be_in(self, piece: bytes) -> bool:
        """False: no line of it matches."""
        return self.literal is None or self.literal in piece


def _problems(tree: Any, *, repeated: bool) -> Iterator[str]:
    for code, arguments in tree:
        if code in (codes.GROUPREF, codes.GROUPREF_EXISTS):
            yield "refers to what was found before"
        elif code in _REPEATS:
            _, most, inner = arguments
            many = most > _MANY
            if many and repeated:
                yield "repeats what repeats"
            yield from _problems(inner, repeated=repeated or many)
        else:
            for part in _parts(arguments):
                yield from _problems(part, repeated=repeated)


def _parts(arguments: Any) -> Iterator[Any]:
    """The expressions within one part of an expression, however deep its kind keeps them."""
    if isinstance(arguments, parser.SubPattern):
        yield arguments
    elif isinstance(arguments, (tuple, list)):
        for one in arguments:
            yield from _parts(one)
