"""A program's settings as a dataclass, filled from params: names are checked, values get their types and keep to their
bounds. What is wrong is told in the same words before a program starts and inside it.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from windlass.core.errors import InvalidInput
from windlass.core.names import unknown

Settings = TypeVar("Settings")

_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_RULES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


@dataclass(frozen=True, slots=True)
class Within:
    """Bounds of a number, for `Annotated`."""

    least: float
    most: float = math.inf
    above: bool = False  # whether it must be more than `least`

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most and not (self.above and value == self.least)

    def __str__(self) -> str:
        start = f"above {self.least:g}" if self.above else f"from {self.least:g}"
        return start if math.isinf(self.most) else f"{start} to {self.most:g}"


Count = Annotated[int, Within(1)]
Whole = Annotated[int, Within(0)]
Positive = Annotated[float, Within(0, above=True)]
NotNegative = Annotated[float, Within(0)]
Share = Annotated[float, Within(0, 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One setting, as its dataclass declares it."""

    name: str
    type: Any  # int, float, bool, str, or what is a list of words
    may_be_null: bool
    options: tuple[str, ...]
    bounds: Within | None
    default: Any  # dataclasses.MISSING: it must be given

    @property
    def is_required(self) -> bool:
        return self.default is dataclasses.MISSING

    @property
    def rule(self) -> str:
        if self.options:
            return f"one of {', '.join(self.options)}"
        rule = _RULES.get(self.type, "a list of words")
        return rule if self.bounds is None else f"{rule} {self.bounds}"


def fields_of(kind: type[Any]) -> dict[str, Field]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: _field(field, hints[field.name]) for field in dataclasses.fields(kind)}


def fill(kind: type[Settings], params: Mapping[str, Any]) -> Settings:
    """`kind` with `params` over its defaults.

    Raises InvalidInput for a param that is no field, for a value that is not of the field's type or out of its bounds,
    and for one that must be given and is not. YAML reads `3e-4` as text: numbers may be text here.
    """
    fields = fields_of(kind)
    for name in params:
        if name not in fields:
            raise InvalidInput(unknown("param", name, fields))
    if missing := [name for name, field in fields.items() if field.is_required and name not in params]:
        raise InvalidInput(f"missing param{'s' if len(missing) > 1 else ''}: {', '.join(missing)}")
    return kind(**{name: _typed(fields[name], value) for name, value in params.items()})


def _field(field: dataclasses.Field[Any], hint: Any) -> Field:
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    several = typing.get_args(hint) if is_union else (hint,)
    inner = next(option for option in several if option is not type(None))
    bounds = None
    if typing.get_origin(inner) is Annotated:
        inner, *notes = typing.get_args(inner)
        bounds = next((note for note in notes if isinstance(note, Within)), None)
    is_choice = typing.get_origin(inner) is Literal
    return Field(
        name=field.name,
        type=str if is_choice else inner,
        may_be_null=type(None) in several,
        options=typing.get_args(inner) if is_choice else (),
        bounds=bounds,
        default=field.default,
    )


def _typed(field: Field, value: Any) -> Any:
    if value is None and field.may_be_null:
        return None
    try:
        typed = _converted(value, field.type)
    except (TypeError, ValueError, KeyError, OverflowError):
        raise _refusal(field, value) from None
    if field.options and typed not in field.options:
        raise InvalidInput(unknown(field.name, typed, field.options))
    if field.bounds is not None and typed not in field.bounds:
        raise _refusal(field, value)
    return typed


def _refusal(field: Field, value: Any) -> InvalidInput:
    return InvalidInput(f"param {field.name!r} is {value!r}, but must be {field.rule}")


def _converted(value: Any, kind: Any) -> Any:
    if kind is bool:
        return value if isinstance(value, bool) else _WORDS[str(value).lower()]
    if kind is int:
        number = float(value)
        if isinstance(value, bool) or not number.is_integer():
            raise ValueError(value)
        return int(value) if isinstance(value, int) else int(number)
    if kind is float:
        if isinstance(value, bool) or not math.isfinite(number := float(value)):
            raise ValueError(value)
        return number
    if kind is str:
        return str(value)
    words = value.split(",") if isinstance(value, str) else list(value)  # tuple[str, ...]
    return tuple(str(word).strip() for word in words)
