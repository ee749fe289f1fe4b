"""A script's settings as a dataclass, filled from the run's params: names are checked, values get their types."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from windlass.core.errors import InvalidInput
from windlass.core.names import unknown
from windlass.job.session import session

Settings = TypeVar("Settings")

_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def settings_of(kind: type[Settings], params: Mapping[str, Any] | None = None) -> Settings:
    """`kind` with the run's params (or `params`) over its defaults, and the run's seed if it has a field `seed`.

    Raises InvalidInput for a param that is no field and for a value that is not of the field's type. YAML reads `3e-4`
    as text: numbers may be text here.
    """
    given = dict(session().params if params is None else params)
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    if params is None and session().seed is not None and "seed" in names:
        given.setdefault("seed", session().seed)
    for name in given:
        if name not in names:
            raise InvalidInput(unknown("param", name, names))
    return kind(**{name: _typed(name, value, hints[name]) for name, value in given.items()})


def _typed(name: str, value: Any, hint: Any) -> Any:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    kind = next(option for option in options if option is not type(None))
    try:
        return _converted(value, kind)
    except (TypeError, ValueError, KeyError):
        rule = {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "a list of words")
        raise InvalidInput(f"param {name!r} is {value!r}, but must be {rule}") from None


def _converted(value: Any, kind: Any) -> Any:
    if kind is bool:
        return value if isinstance(value, bool) else _WORDS[str(value).lower()]
    if kind is int:
        number = float(value)
        if isinstance(value, bool) or not number.is_integer():
            raise ValueError(value)
        return int(value) if isinstance(value, int) else int(number)
    if kind is float:
        if isinstance(value, bool):
            raise ValueError(value)
        return float(value)
    if kind is str:
        return str(value)
    words = value.split(",") if isinstance(value, str) else list(value)  # tuple[str, ...]
    return tuple(str(word).strip() for word in words)
