"""What a call takes: names, kinds and limits, read from JSON or a query as protobuf reads them, since that is what
clients write: keys that are unknown are passed over, null is absent, numbers may be text, and what is absent has the
empty value of its kind.

    @calls.post("/mlflow/experiments/create", name=text(required=True), tags=items())
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from windlass.core.errors import InvalidInput
from windlass.core.storable import is_storable, storable_text

_SEE = " See the API docs for more information about request parameters."
Check = Callable[[str, Any], None]  # (name, value); raises InvalidInput


class _Unreadable(Exception):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    read: Callable[[Any], Any]  # raises _Unreadable
    empty: Any
    required: bool = False
    many: bool = False  # of a query: all of its values
    checks: tuple[Check, ...] = ()
    also: str | None = None  # another name it may have
    shown: bool = True  # its value may stand in an error


class Asked(Mapping[str, Any]):
    """The values of a call. `given` tells what was there from what has its empty value."""

    def __init__(self, values: Mapping[str, Any], given: frozenset[str]) -> None:
        self._values = values
        self.given = given

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def or_none(self, name: str) -> Any:
        """None if it was not given."""
        return self._values[name] if name in self.given else None


def text(*checks: Check, required: bool = False, also: str | None = None, shown: bool = True) -> Field:
    return Field(read=_text, empty="", required=required, checks=checks, also=also, shown=shown)


def words(*, required: bool = False) -> Field:
    """A text that somebody's program wrote: characters that cannot be kept are replaced rather than refused."""
    return Field(read=lambda value: storable_text(_plain_text(value)), empty="", required=required)


def whole(*checks: Check, required: bool = False, empty: int = 0) -> Field:
    return Field(read=_whole, empty=empty, required=required, checks=checks)


def number(*checks: Check, required: bool = False) -> Field:
    return Field(read=_number, empty=0.0, required=required, checks=checks)


def yes_or_no(*, required: bool = False) -> Field:
    return Field(read=_yes_or_no, empty=False, required=required)


def one_of(*names: str, first: int = 0, required: bool = False) -> Field:
    """A name of an enumeration, or its number, counted from `first`; empty is the first one."""

    def read(value: Any) -> str:
        if isinstance(value, str) and value in names:
            return value
        number = _whole(value) - first
        if not 0 <= number < len(names):
            raise _Unreadable
        return names[number]

    return Field(read=read, empty=names[0], required=required)


def items(*checks: Check, required: bool = False) -> Field:
    """A list of anything; the handler reads each item."""
    return Field(read=_items, empty=(), required=required, many=True, checks=checks)


def texts(*checks: Check, required: bool = False) -> Field:
    return Field(read=_texts, empty=(), required=required, many=True, checks=checks)


def thing(*checks: Check, required: bool = False) -> Field:
    """A JSON object; the handler reads what is in it, maybe by `read_fields`."""
    return Field(read=_thing, empty=None, required=required, checks=checks)


def anything(*, required: bool = False) -> Field:
    return Field(read=lambda value: value, empty=None, required=required)


def at_most(limit: float, message: str | None = None) -> Check:
    def check(name: str, value: Any) -> None:
        if value > limit:
            raise InvalidInput((message + _SEE) if message else invalid(name, value))

    return check


def within(low: float, high: float, message: str | None = None) -> Check:
    def check(name: str, value: Any) -> None:
        if not low <= value <= high:
            raise InvalidInput((message + _SEE) if message else invalid(name, value))

    return check


def read_fields(fields: Mapping[str, Field], given: Mapping[str, Any]) -> Asked:
    """Raises InvalidInput, in MLflow's words."""
    if not isinstance(given, Mapping):
        raise InvalidInput(f"an object with {', '.join(fields)} belongs here, not {_shown(given)}{_SEE}")
    values: dict[str, Any] = {}
    there: set[str] = set()
    for name, field in fields.items():
        raw = _find(name, field, given)
        if raw is None or (raw == "" and field.required):
            if field.required:
                raise InvalidInput(f"Missing value for required parameter '{name}'.{_SEE}")
            values[name] = field.empty
            continue
        try:
            values[name] = value = field.read(raw)
        except _Unreadable:
            raise InvalidInput(invalid(name, raw if field.shown else "...")) from None
        there.add(name)
        for check in field.checks:
            check(name, value)
    return Asked(values, frozenset(there))


def invalid(name: str, value: Any, why: str | None = None) -> str:
    shown = _shown(value)
    hint = why or f" Hint: Value was of type '{type(value).__name__}'."
    return f"Invalid value {shown} for parameter '{name}' supplied: {hint}{_SEE if why is None else ''}"


def _shown(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def _find(name: str, field: Field, given: Mapping[str, Any]) -> Any:
    for key in (name, _camel(name), field.also):
        if key is not None and given.get(key) is not None:
            return given[key]
    return None


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)


def _text(value: Any) -> str:
    if not is_storable(_plain_text(value)):
        raise InvalidInput(f"{_shown(value)} holds a NUL or half of a character, which no database can keep")
    return str(value)


def _plain_text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Unreadable
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool):
        raise _Unreadable
    try:
        number = int(value) if not isinstance(value, float) or value.is_integer() else None
    except (TypeError, ValueError, OverflowError):
        raise _Unreadable from None
    if number is None or not -(2**63) <= number < 2**63:
        raise _Unreadable
    return number


def _number(value: Any) -> float:
    """NaN and infinities come as text."""
    if isinstance(value, bool):
        raise _Unreadable
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError):
        raise _Unreadable from None


def _yes_or_no(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise _Unreadable


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _Unreadable
    return value


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _Unreadable
    return [_text(item) for item in value]


def _thing(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _Unreadable
    return value
