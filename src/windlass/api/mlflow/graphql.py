"""The few questions that MLflow's pages ask by GraphQL, answered by the calls that are there anyway. A parser of the
language as far as such questions use it: operations, fields with names of their own, arguments, variables, fragments.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windlass.core.errors import InvalidInput

MOST_ROOTS = 10
MOST_ALIASES = 10
MOST_DEPTH = 10
MOST_SELECTIONS = 1_000
MOST_SPREADS = 50  # within each other
_LONGEST = 100_000
_LONGEST_NUMBER = 100

_TOKEN = re.compile(
    r"""[\s,\ufeff]*(?:\#[^\n]*[\s,]*)*(?:
      (?P<block>\"\"\"(?:.|\n)*?\"\"\")
    | (?P<text>"(?:\\.|[^"\\\n])*")
    | (?P<number>-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)
    | (?P<name>[A-Za-z_]\w*)
    | (?P<mark>\.\.\.|[{}()\[\]:=!|&@$])
    | (?P<end>\Z)
    | (?P<other>.)
    )""",
    re.VERBOSE,
)
_CONSTANTS = {"true": True, "false": False, "null": None}
Value = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    name: str
    alias: str | None = None
    arguments: Mapping[str, Value] = field(default_factory=dict)
    within: Sequence[Selection | Spread] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Of a fragment that has a name, or of one that stands right here."""

    name: str | None
    within: Sequence[Selection | Spread] = ()


class Budget:
    """Of selections and fragments, counted as often as they are written out."""

    def __init__(self) -> None:
        self._left = MOST_SELECTIONS

    def spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise InvalidInput(f"Query exceeds maximum total selections of {MOST_SELECTIONS}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    operations: Mapping[str, Sequence[Selection | Spread]]
    fragments: Mapping[str, Sequence[Selection | Spread]]

    def chosen(self, name: str | None) -> list[Selection]:
        """The root fields of an operation. Raises InvalidInput."""
        if name is None and len(self.operations) == 1:
            name = next(iter(self.operations))
        if name is None or name not in self.operations:
            raise InvalidInput(f'Unknown operation named "{name}".')
        return list(self.fields(self.operations[name]))

    def fields(
        self, given: Sequence[Selection | Spread], budget: Budget | None = None, seen: tuple[str | None, ...] = ()
    ) -> Iterator[Selection]:
        """With what fragments add; one that contains itself adds nothing. Raises InvalidInput, also for fragments that
        are many only once they are written out."""
        budget = budget or Budget()
        if len(seen) > MOST_SPREADS:
            raise InvalidInput(f"Query exceeds maximum depth of {MOST_SPREADS} fragments")
        for one in given:
            budget.spend()
            if isinstance(one, Selection):
                yield one
            elif one.name is None:
                yield from self.fields(one.within, budget, (*seen, None))
            elif one.name not in seen:
                yield from self.fields(self.fragments.get(one.name, ()), budget, (*seen, one.name))


def parse(text: str) -> Document:
    """Raises InvalidInput."""
    if len(text) > _LONGEST:
        raise InvalidInput(f"a query has at most {_LONGEST:,} characters")
    try:
        return _Parser(text).document()
    except RecursionError:
        raise InvalidInput(f"Query exceeds maximum depth of {MOST_DEPTH}") from None


def check_size(document: Document) -> None:
    """Raises InvalidInput for a question that asks for too much at once."""
    roots = most_aliases = 0
    budget = Budget()
    for operation in document.operations.values():
        waiting: list[tuple[Sequence[Selection | Spread], int]] = [(operation, 1)]
        while waiting:
            given, depth = waiting.pop()
            if depth > MOST_DEPTH:
                raise InvalidInput(f"Query exceeds maximum depth of {MOST_DEPTH}")
            found = list(document.fields(given, budget))
            roots += len(found) if depth == 1 else 0
            most_aliases = max(most_aliases, sum(one.alias is not None for one in found))
            waiting += [(one.within, depth + 1) for one in found if one.within]
    for count, most, what in ((roots, MOST_ROOTS, "root fields"), (most_aliases, MOST_ALIASES, "aliases")):
        if count > most:
            raise InvalidInput(f"GraphQL queries should have at most {most} {what}, got {count} {what}.")


def filled(value: Value, variables: Mapping[str, Value]) -> Value:
    """With variables replaced by their values."""
    if isinstance(value, Variable):
        return variables.get(value.name)
    if isinstance(value, list):
        return [filled(one, variables) for one in value]
    if isinstance(value, dict):
        return {key: filled(one, variables) for key, one in value.items()}
    return value


def project(document: Document, selection: Selection, found: Any) -> Any:
    """What is wanted of an answer of ours, under the names that are wanted. Long numbers are text, as MLflow has it,
    and NaN is null, since there is no such number."""
    if isinstance(found, list):
        return [project(document, selection, one) for one in found]
    if not selection.within:
        return _plain(found)
    if not isinstance(found, dict):
        return found
    return {
        one.alias or one.name: project(document, one, found.get(snake(one.name), _absent(one)))
        for one in document.fields(selection.within)
    }


def snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda capital: "_" + capital[0].lower(), name)


_NUMBERS = ("start_time", "end_time", "file_size", "step", "timestamp", "creation_time", "last_update_time")
_ONE = ("info", "data", "inputs", "outputs", "experiment", "run", "dataset", "api_error")


def _absent(one: Selection) -> Any:
    """The empty value of a field that an answer leaves out."""
    name = snake(one.name)
    if one.within:
        return (None if name == "api_error" else {}) if name in _ONE else []
    return 0 if name in _NUMBERS else ""


def _plain(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value == "NaN" or (isinstance(value, float) and math.isnan(value)):
        return None
    return value


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0

    def document(self) -> Document:
        operations: dict[str, Sequence[Selection | Spread]] = {}
        fragments: dict[str, Sequence[Selection | Spread]] = {}
        while self._peek()[0] != "end":
            kind, text = self._peek()
            if text == "{":
                operations[""] = self._selections()
            elif text in ("query", "mutation"):
                self._next()
                name = self._next()[1] if self._peek()[0] == "name" else ""
                self._skip_variables()
                self._skip_directives()
                operations[name] = self._selections()
            elif text == "fragment":
                self._next()
                name = self._next()[1]
                self._expect("on")
                self._next()
                self._skip_directives()
                fragments[name] = self._selections()
            else:
                raise InvalidInput(f"Syntax Error: Unexpected {kind} {text!r}.")
        return Document(operations=operations, fragments=fragments)

    def _selections(self) -> list[Selection | Spread]:
        self._expect("{")
        found: list[Selection | Spread] = []
        while self._peek()[1] != "}" or self._peek()[0] != "mark":
            found.append(self._spread() if self._peek()[1] == "..." else self._selection())
        self._expect("}")
        return found

    def _spread(self) -> Spread:
        self._expect("...")
        if self._peek()[0] == "name" and self._peek()[1] != "on":
            name = self._next()[1]
            self._skip_directives()
            return Spread(name=name)
        if self._peek()[1] == "on":
            self._next()
            self._next()
        self._skip_directives()
        return Spread(name=None, within=self._selections())

    def _selection(self) -> Selection:
        name, alias = self._name(), None
        if self._peek()[1] == ":":
            self._next()
            alias, name = name, self._name()
        arguments = self._arguments() if self._peek()[1] == "(" else {}
        self._skip_directives()
        within = self._selections() if self._peek()[1] == "{" else ()
        return Selection(name=name, alias=alias, arguments=arguments, within=within)

    def _arguments(self) -> dict[str, Value]:
        self._expect("(")
        found = {}
        while self._peek()[1] != ")":
            name = self._name()
            self._expect(":")
            found[name] = self._value()
        self._expect(")")
        return found

    def _value(self) -> Value:
        kind, text = self._next()
        if kind == "text":
            return _unescaped(text[1:-1])
        if kind == "block":
            return text[3:-3]
        if kind == "number":
            if len(text) > _LONGEST_NUMBER:
                raise InvalidInput(f"Syntax Error: a number of {len(text)} characters.")
            return float(text) if any(sign in text for sign in ".eE") else int(text)
        if kind == "name":
            return _CONSTANTS.get(text, text)
        if text == "$":
            return Variable(name=self._name())
        if text == "[":
            items = []
            while self._peek()[1] != "]":
                items.append(self._value())
            self._expect("]")
            return items
        if text == "{":
            found = {}
            while self._peek()[1] != "}":
                name = self._name()
                self._expect(":")
                found[name] = self._value()
            self._expect("}")
            return found
        raise InvalidInput(f"Syntax Error: Unexpected {text!r}.")

    def _skip_variables(self) -> None:
        """Their types are not checked: the calls look at what they are given."""
        if self._peek()[1] == "(":
            while self._next()[1] != ")":
                if self._peek()[0] == "end":
                    raise InvalidInput("Syntax Error: Unexpected <EOF>.")

    def _skip_directives(self) -> None:
        while self._peek()[1] == "@":
            self._next()
            self._name()
            if self._peek()[1] == "(":
                self._arguments()

    def _name(self) -> str:
        kind, text = self._next()
        if kind != "name":
            raise InvalidInput(f"Syntax Error: Expected Name, found {text or '<EOF>'!r}.")
        return text

    def _expect(self, text: str) -> None:
        _, found = self._next()
        if found != text:
            raise InvalidInput(f"Syntax Error: Expected {text!r}, found {found or '<EOF>'!r}.")

    def _peek(self) -> tuple[str, str]:
        return self._tokens[min(self._at, len(self._tokens) - 1)]

    def _next(self) -> tuple[str, str]:
        token = self._peek()
        if token[0] == "end" and self._at >= len(self._tokens):
            raise InvalidInput("Syntax Error: Unexpected <EOF>.")
        self._at += 1
        return token


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    position = 0
    while True:
        found = _TOKEN.match(text, position)
        assert found is not None
        assert found.lastgroup is not None
        if found.lastgroup == "other":
            raise InvalidInput(f"Syntax Error: Unexpected character: {found['other']!r}.")
        yield found.lastgroup, found[found.lastgroup]
        if found.lastgroup == "end":
            return
        position = found.end()


def _unescaped(text: str) -> str:
    special = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}

    def plain(found: re.Match[str]) -> str:
        if found[1].startswith("u"):
            return chr(int(found[1][1:], 16))
        return special.get(found[1], found[1])

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", plain, text)
