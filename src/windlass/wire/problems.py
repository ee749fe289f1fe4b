"""Pydantic's errors in the words of this project: the key, the rule, the value, and the nearest right key."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from windlass.core.names import nearest
from windlass.core.quantities import exact_size

Path = tuple[str | int, ...]
# Pydantic's name of a broken rule, the rule in words, and pydantic's name of the bound.
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


def problems_of(
    invalid: ValidationError,
    model: type[BaseModel],
    data: Any,
    *,
    where: Callable[[Path], str] = lambda _path: "",
    not_yet: Mapping[str, set[str]] | None = None,
) -> list[str]:
    """Each broken rule once, with `where(path)` before it. `not_yet`: keys of later versions, by their parent."""
    found = []
    for error in invalid.errors(include_url=False):
        path = _path_in(data, error["loc"], keep_last=error["type"] == "missing")
        found.append(where(path) + _describe(error, path, model, data, not_yet or {}))
    return list(dict.fromkeys(found))


def _path_in(data: Any, loc: Sequence[str | int], *, keep_last: bool) -> Path:
    """Pydantic's location without what is not in the data: members of unions, tags, its marks for keys."""
    here, path = data, []
    for index, part in enumerate(loc):
        listed = isinstance(here, list | tuple) and isinstance(part, int) and part < len(here)
        if listed or (isinstance(here, Mapping) and part in here):
            here = here[part]
        elif not (keep_last and index == len(loc) - 1):
            continue
        path.append(part)
    return tuple(path)


def _describe(
    error: Mapping[str, Any], path: Path, model: type[BaseModel], data: Any, not_yet: Mapping[str, set[str]]
) -> str:
    name = ".".join(str(part) for part in path)
    if error["type"] == "extra_forbidden":
        parent, key = ".".join(str(part) for part in path[:-1]), str(path[-1])
        if key in not_yet.get(parent, ()):
            return f"`{name}` is not supported by this version of Windlass"
        known = known_keys(model, path[:-1], data)
        guess = nearest(key, known)
        return f"unknown key `{name}`" + (f"; did you mean `{guess}`?" if guess else f"; known: {', '.join(known)}")
    message = re.sub(r"^(Value error|Assertion failed), ", "", error["msg"])
    if bound := _BOUNDS.get(error["type"]):
        limit = error["ctx"][bound[1]]
        message = f"is {error['input']!r:.80}, and must be {bound[0]} {_spelled(limit, error['input'])}"
    elif error["type"] == "union_tag_invalid":
        context = error["ctx"]
        message = f"unknown type {context['tag']!r}; known: {context['expected_tags']}".replace("'", "")
    elif error["type"] == "union_tag_not_found":
        message = f"`{error['ctx']['discriminator'].strip(chr(39))}` is missing: it says of which type this is"
    if not path:
        return message
    if error["type"] == "string_pattern_mismatch" and "A-Za-z" in message:
        message = "write letters, digits and . _ - only, starting with a letter or digit"
    value = error.get("input")
    told = not isinstance(value, str | int | float | bool) or repr(value) in message
    return f"`{name}`: {message[:1].lower()}{message[1:]}" + ("" if told else f" (got {value!r:.80})")


def _spelled(limit: Any, given: Any) -> str:
    """A number as text is mostly a size with its unit, and so is its limit then if that is large and round."""
    if isinstance(limit, float):
        return f"{limit:g}"
    return exact_size(limit) if isinstance(given, str) and limit >= 1 << 20 else str(limit)


def known_keys(model: Any, path: Path, data: Any) -> list[str]:
    """The keys that the mapping at `path` may have. `data` tells which member of a tagged union is meant."""
    here = list(_members(model))
    for part in path:
        here = [member for kind in here for inner in _inside(kind, part) for member in _members(inner)]
        data = data[part] if isinstance(data, Mapping) and part in data else None
    models = [kind for kind in here if isinstance(kind, type) and issubclass(kind, BaseModel)]
    tag = data.get("type") if isinstance(data, Mapping) else None
    meant = [kind for kind in models if tag in _tags(kind)] or models
    return sorted({name for kind in meant for name in kind.model_fields})


def _members(annotation: Any) -> Iterator[Any]:
    """The types that an annotation allows, unions and annotations taken apart."""
    if get_origin(annotation) is Annotated:
        yield from _members(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _members(member)
    else:
        yield annotation


def _inside(kind: Any, part: str | int) -> Iterator[Any]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if part in kind.model_fields:
            yield kind.model_fields[str(part)].annotation
    elif get_origin(kind) in (dict, list, tuple):
        yield get_args(kind)[-1 if get_origin(kind) is dict else 0]


def _tags(kind: type[BaseModel]) -> tuple[Any, ...]:
    field = kind.model_fields.get("type")
    return get_args(field.annotation) if field and get_origin(field.annotation) is Literal else ()
