"""The language of MLflow's searches: comparisons joined by AND, and clauses of an order. Reads text into clauses; what
their names mean is the affair of each search. Every function raises InvalidInput. Pure.

    metrics.loss < 0.1 AND params."batch size" = '32' AND tags.`mlflow.user` LIKE 'a%' AND attributes.run_id IN ('a')
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from windlass.core.errors import InvalidInput

NUMERIC = (">", ">=", "!=", "=", "<", "<=")
TEXTUAL = ("!=", "=", "LIKE", "ILIKE")
PRESENCE = ("IS NULL", "IS NOT NULL")
MEMBERSHIP = ("IN", "NOT IN")

LONGEST_FILTER = 100_000  # characters: some thousands of ids in a list
LONGEST_ORDER = 1_000
# SQLite allows some 1,000 conditions in a query, and 64 tables: each order by a metric, a param or a tag needs one.
MOST_CLAUSES = 200
MOST_ORDERS = 20

# What follows is read while nothing else runs, so each pattern has one way only to match a text: parts hold no dots,
# and what is quoted is never looked through again.
_QUOTED = r"""(?>'(?:''|\\'|[^'])*'|"(?:[^"])*"|`(?:[^`])*`)"""
_PLAIN = r"[\w/\-@#$:]"
_PATH = rf"(?>(?:[A-Za-z_]{_PLAIN}*|{_QUOTED})(?:(?:\.+(?:{_QUOTED}|{_PLAIN}+))+\.*)?)"
_TOKEN = re.compile(
    rf"""\s*(?:
      (?P<number>[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?(?![\w.]))
    | (?P<text>'(?:''|\\'|[^'])*')
    | (?P<path>{_PATH})
    | (?P<list>\((?:[^()'"]|'[^']*'|"[^"]*")*\))
    | (?P<sign><=|>=|!=|<>|==|=|<|>)
    | (?P<end>;)
    | (?P<other>[\d.]+[\w.]*|\S)
    )""",
    re.VERBOSE,
)
_ITEM = re.compile(r"""\s*(?:'([^']*)'|"([^"]*)"|([^\s,]+))\s*(?:,|$)""")
_ORDER = re.compile(rf"\s*({_PATH})(?:\s+(\S+))?\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    kind: str  # number, text, path, list, sign, end, other
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """What a comparison or an order is about: `params.lr` is the kind `params` and the key `lr`."""

    kind: str | None
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    name: Name
    op: str
    value: Token | None  # None: of a check for presence

    def number(self, what: str) -> int | float:
        """`what` stands in the error: `metric`, or `numeric attribute: start_time`."""
        if self.value is None or self.value.kind != "number":
            raise InvalidInput(f"Expected numeric value type for {what}. Found {self._shown()}")
        try:
            number = int(self.value.text)
        except ValueError:
            return float(self.value.text)
        return number if -(2**63) <= number < 2**63 else float(self.value.text)  # databases know no others

    def words(self, what: str) -> str:
        """`what` stands in the error: `parameter (e.g. 'my-value')`."""
        if self.value is not None and self.value.kind == "text":
            return self.value.text[1:-1]
        if self.value is not None and self.value.kind == "path":
            return _quoted_value(self.value.text)
        raise InvalidInput(f"Expected a quoted string value for {what}. Got value {self._shown()}")

    def items(self) -> tuple[str, ...]:
        assert self.value is not None
        return _items(self.value.text[1:-1])

    @property
    def has_list(self) -> bool:
        return self.value is not None and self.value.kind == "list"

    def _shown(self) -> str:
        return self.value.text if self.value else "nothing"


def parse_filter(text: str | None) -> list[Clause]:
    if not text or not text.strip():
        return []
    _check_length("filter", text, LONGEST_FILTER)
    tokens = list(_tokens(text))
    while tokens and tokens[-1].kind == "end":
        tokens.pop()
    if any(token.kind == "end" for token in tokens):
        raise InvalidInput(f"Search filter contained multiple expression {text!r}. Provide AND-ed expression list.")
    clauses = list(_clauses(tokens))
    if len(clauses) > MOST_CLAUSES:
        raise InvalidInput(f"the filter has {len(clauses):,} comparisons; it may have {MOST_CLAUSES}")
    return clauses


def parse_order(text: str) -> tuple[Name, bool]:
    """(what by, ascending)."""
    _check_length("order_by clause", text, LONGEST_ORDER)
    found = _ORDER.fullmatch(text)
    if found is None:
        raise InvalidInput(f"Invalid order_by clause '{text}'. Could not be parsed.")
    path, direction = found.groups()
    if direction is not None and direction.lower() not in ("asc", "desc"):
        raise InvalidInput(f"Invalid ordering key in order_by clause '{text}'.")
    return _name(path), (direction or "asc").lower() == "asc"


def check_orders(order: Sequence[object]) -> None:
    """Of a search that needs a table for each."""
    if len(order) > MOST_ORDERS:
        raise InvalidInput(f"`order_by` has {len(order):,} clauses; it may have {MOST_ORDERS}")


def check_op(clause: Clause, allowed: Sequence[str]) -> None:
    if clause.op not in allowed:
        raise InvalidInput(f"Invalid comparator '{clause.op}' not one of '{', '.join(sorted(allowed))}'")


def _check_length(what: str, text: str, longest: int) -> None:
    if len(text) > longest:
        raise InvalidInput(f"a {what} of {len(text):,} characters is too long; it may have {longest:,}")


def _tokens(text: str) -> Iterator[Token]:
    position, end = 0, len(text.rstrip())
    while position < end:
        found = _TOKEN.match(text, position)
        assert found is not None  # `other` takes what nothing else does
        assert found.lastgroup is not None
        yield Token(kind=found.lastgroup, text=found[found.lastgroup])
        position = found.end()


def _clauses(tokens: Sequence[Token]) -> Iterator[Clause]:
    at = 0
    while at < len(tokens):
        if at and _word(tokens[at]) == "AND":
            at += 1
        clause, taken = _clause(tokens[at : at + 4])
        yield clause
        at += taken
        if at < len(tokens) and (_word(tokens[at]) != "AND" or at + 1 == len(tokens)):
            raise _unreadable(tokens[at:])


def _clause(tokens: Sequence[Token]) -> tuple[Clause, int]:
    """The comparison that these begin with, and how many of them it takes."""
    words = [_word(token) for token in tokens]
    if len(tokens) < 3 or (tokens[0].kind != "path" and tokens[1].kind == "sign"):
        first = f"'{tokens[0].text}'" if tokens else "nothing"
        if len(tokens) >= 3:
            raise InvalidInput(f"Invalid comparison clause. Expected 'Identifier' found {first}")
        raise _unreadable(tokens)
    if tokens[0].kind != "path":
        raise _unreadable(tokens[:1])
    name = tokens[0].text
    if words[1:3] == ["IS", "NULL"]:
        return Clause(name=_name(name), op="IS NULL", value=None), 3
    if words[1:4] == ["IS", "NOT", "NULL"]:
        return Clause(name=_name(name), op="IS NOT NULL", value=None), 4
    if words[1:3] == ["NOT", "IN"] and len(tokens) == 4 and tokens[3].kind == "list":
        return Clause(name=_name(name), op="NOT IN", value=tokens[3]), 4
    if words[1] == "IN" and tokens[2].kind == "list":
        return Clause(name=_name(name), op="IN", value=tokens[2]), 3
    op = words[1] if words[1] in ("LIKE", "ILIKE", "RLIKE") else tokens[1].text
    if words[1] not in ("LIKE", "ILIKE", "RLIKE") and tokens[1].kind != "sign":
        raise _unreadable(tokens)
    return Clause(name=_name(name), op="!=" if op == "<>" else op, value=tokens[2]), 3


def _unreadable(tokens: Sequence[Token]) -> InvalidInput:
    return InvalidInput("Invalid clause(s) in filter string: " + ", ".join(f"'{token.text}'" for token in tokens))


def _word(token: Token) -> str | None:
    return token.text.upper() if token.kind == "path" else None


def _name(path: str) -> Name:
    kind, dot, key = path.partition(".")
    if path[0] in "`\"'" or not dot:
        return Name(kind=None, key=_bare(path))
    return Name(kind=_bare(kind), key=_bare(key))


def _bare(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "`\"'":
        return text[1:-1]
    return text


def _quoted_value(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    raise InvalidInput(
        "Parameter value is either not quoted or unidentified quote types used for string value"
        f" {text}. Use either single or double quotes."
    )


def _items(text: str) -> tuple[str, ...]:
    found: list[str] = []
    position = 0
    rest = text.strip()
    while position < len(rest):
        item = _ITEM.match(rest, position)
        if item is None:
            raise InvalidInput(
                "While parsing a list in the query, expected a non-empty list of string values, but got ill-formed"
                " list."
            )
        if item[3] is not None:
            raise InvalidInput(
                "While parsing a list in the query, expected string value, punctuation, or whitespace, but got"
                f" different type in list: ({rest})"
            )
        found.append(item[1] if item[1] is not None else item[2])
        position = item.end()
    if not found:
        raise InvalidInput(
            "While parsing a list in the query, expected a non-empty list of string values, but got empty list"
        )
    return tuple(found)
