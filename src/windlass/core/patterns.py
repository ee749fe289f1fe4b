"""Regular expressions of users, matched in time that grows with the text alone.

Python's own engine tries again and again: some patterns take it for ever, and it lets no other thread run meanwhile.
Here all ways through a pattern are followed at once, and each step is remembered. What that cannot do is refused:
references to what was found before, and looks ahead or behind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, TypeAlias

from windlass.core.errors import InvalidInput

_MOST_NODES = 5_000
_MOST_MOVES = 20_000  # remembered at once
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT)
_KNOWN_FLAGS = re.IGNORECASE | re.MULTILINE | re.DOTALL | re.UNICODE | re.VERBOSE
_EDGE, _LAST_NEWLINE = "", "\n$"  # what comes next: nothing; a newline, and then nothing
Test: TypeAlias = Callable[[str], bool]


class _Node:
    """Either takes a character that passes `test`, or stands at a place (`at`), or leads on for nothing."""

    __slots__ = ("at", "multiline", "nexts", "test")

    def __init__(self, nexts: tuple[_Node, ...] = (), *, test: Test | None = None, at: Any = None) -> None:
        self.nexts, self.test, self.at, self.multiline = nexts, test, at, False


class _State:
    """All nodes that may come next, after a character of some kind; where each next one leads is filled in later."""

    __slots__ = ("before", "moves", "nodes")

    def __init__(self, nodes: frozenset[_Node], before: str) -> None:
        self.nodes, self.before = nodes, before
        self.moves: dict[str, _State] = {}


_FOUND = _State(frozenset(), _EDGE)


class Pattern:
    def __init__(self, text: str) -> None:
        """Raises InvalidInput."""
        try:
            tree = parser.parse(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise InvalidInput(
                f"{text!r} is no regular expression: {error}", hint="write \\ before . * + ? ( ["
            ) from None
        self._text = text
        self._nodes = 0
        self._end = _Node()
        self._start = self._sequence(tree, tree.state.flags, self._end)
        self._states: dict[tuple[frozenset[_Node], str], _State] = {}
        self._moves = 0

    def is_in(self, text: str) -> bool:
        state = _State(frozenset(), _EDGE)
        newline = text.endswith("\n")
        for char in text[:-1] if newline else text:
            state = state.moves.get(char) or self._move(state, char)
            if state is _FOUND:
                return True
        if newline:
            state = self._move(state, _LAST_NEWLINE)
        return state is _FOUND or self._move(state, _EDGE) is _FOUND

    def _move(self, state: _State, char: str) -> _State:
        reached = self._reached({self._start, *state.nodes}, state.before, char)
        if self._end in reached:
            found = _FOUND
        else:
            taken = char[:1]
            nodes = frozenset(n for node in reached if node.test and taken and node.test(taken) for n in node.nexts)
            key = (nodes, _kind(taken))
            if self._moves > _MOST_MOVES:
                self._states, self._moves = {}, 0
            found = self._states.setdefault(key, _State(*key))
        self._moves += 1
        state.moves[char] = found
        return found

    def _reached(self, nodes: Iterable[_Node], before: str, char: str) -> set[_Node]:
        seen: set[_Node] = set()
        waiting = list(nodes)
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                if node.test is None and (node.at is None or _is_at(node, before, char)):
                    waiting += node.nexts
        return seen

    def _node(self, *nexts: _Node, test: Test | None = None, at: Any = None) -> _Node:
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise InvalidInput(f"{self._text!r} repeats too much", hint="write smaller numbers into { }")
        return _Node(nexts, test=test, at=at)

    def _sequence(self, tree: Any, flags: int, after: _Node) -> _Node:
        if flags & ~_KNOWN_FLAGS:
            raise InvalidInput(f"{self._text!r} has flags other than i, m, s, x")
        for code, arguments in reversed(list(tree)):
            after = self._part(code, arguments, flags, after)
        return after

    def _part(self, code: Any, arguments: Any, flags: int, after: _Node) -> _Node:
        if code in (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN):
            return self._node(after, test=_test(code, arguments, flags))
        if code is codes.AT:
            node = self._node(after, at=arguments)
            node.multiline = bool(flags & re.MULTILINE)
            return node
        if code is codes.SUBPATTERN:
            _, added, removed, inner = arguments
            return self._sequence(inner, (flags | added) & ~removed, after)
        if code is codes.BRANCH:
            return self._node(*[self._sequence(branch, flags, after) for branch in arguments[1]])
        if code in _REPEATS:
            return self._repeat(arguments, flags, after)
        raise InvalidInput(
            f"{self._text!r} looks ahead or behind, or refers to what was found before, which cannot be searched for"
        )

    def _repeat(self, arguments: tuple[Any, Any, Any], flags: int, after: _Node) -> _Node:
        least, most, inner = arguments
        if most is codes.MAXREPEAT:
            last = self._node()
            last.nexts = (self._sequence(inner, flags, last), after)
        else:
            last = after
            for _ in range(most - least):
                last = self._node(self._sequence(inner, flags, last), after)
        for _ in range(least):
            self._nodes += 1  # of something empty, too
            last = self._sequence(inner, flags, last)
            if self._nodes > _MOST_NODES:
                self._node()
        return last


@lru_cache(maxsize=64)
def pattern_of(text: str) -> Pattern:
    """Raises InvalidInput. Threads may share one: the worst is that two of them find out the same step."""
    return Pattern(text)


def _kind(char: str) -> str:
    if not char or char == "\n":
        return char
    return "w" if _is_word(char) else "-"


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def _is_at(node: _Node, before: str, char: str) -> bool:
    match node.at:
        case codes.AT_BEGINNING:
            return before == _EDGE or (node.multiline and before == "\n")
        case codes.AT_BEGINNING_STRING:
            return before == _EDGE
        case codes.AT_END:
            return char in (_EDGE, _LAST_NEWLINE) or (node.multiline and char == "\n")
        case codes.AT_END_STRING:
            return char == _EDGE
    between = (before == "w") != (char != _EDGE and _is_word(char[0]))
    return between if node.at is codes.AT_BOUNDARY else not between


_CATEGORIES: dict[Any, Test] = {
    codes.CATEGORY_DIGIT: str.isdecimal,
    codes.CATEGORY_NOT_DIGIT: lambda char: not char.isdecimal(),
    codes.CATEGORY_SPACE: str.isspace,
    codes.CATEGORY_NOT_SPACE: lambda char: not char.isspace(),
    codes.CATEGORY_WORD: _is_word,
    codes.CATEGORY_NOT_WORD: lambda char: not _is_word(char),
}


def _test(code: Any, arguments: Any, flags: int) -> Test:
    if code is codes.ANY:
        return (lambda _char: True) if flags & re.DOTALL else (lambda char: char != "\n")
    items = list(arguments) if code is codes.IN else [(codes.LITERAL, arguments)]
    negated = code is codes.NOT_LITERAL or items[0][0] is codes.NEGATE
    chosen = [_one(kind, value) for kind, value in items if kind is not codes.NEGATE]
    folded = bool(flags & re.IGNORECASE)

    def test(char: str) -> bool:
        forms = {char, char.lower(), char.upper()} if folded else (char,)
        return any(one(form) for form in forms if len(form) == 1 for one in chosen) is not negated

    return test


def _one(kind: Any, value: Any) -> Test:
    if kind is codes.CATEGORY:
        return _CATEGORIES[value]
    low, high = value if kind is codes.RANGE else (value, value)
    return lambda char: low <= ord(char) <= high
