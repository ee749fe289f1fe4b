"""What can be asked of models and versions: `name LIKE 'a%' AND tags.team = 'vision'`, and orders such as `name DESC`.
The language is that of `experiments.language`; here is what its names mean. Every function raises InvalidInput. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from windlass.core.errors import InvalidInput, WindlassError
from windlass.experiments.language import MEMBERSHIP, NUMERIC, TEXTUAL, Name, parse_filter, parse_order
from windlass.experiments.language import Clause as Comparison
from windlass.registry.types import PROMPT_TAG

Value = str | int | tuple[str, ...]

_KEYWORDS = ("TRUE", "FALSE", "NULL")  # of SQL: not even wrong values


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The attributes of one kind of thing."""

    texts: frozenset[str]
    lists: frozenset[str]  # of these, compared with lists too
    numbers: frozenset[str] = frozenset()


MODELS = Scope(texts=frozenset({"name"}), lists=frozenset({"name"}))
VERSIONS = Scope(
    texts=frozenset({"name", "run_id", "source_path"}),
    lists=frozenset({"name", "run_id"}),
    numbers=frozenset({"version_number"}),
)
_MODEL_ORDERS = {"name": "name", "timestamp": "updated_at", "last_updated_timestamp": "updated_at"}
_VERSION_ORDERS = {
    "name": "name",
    "version_number": "version",
    "creation_timestamp": "created_at",
    "last_updated_timestamp": "updated_at",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    is_tag: bool
    key: str
    comparator: str
    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    key: str  # a column
    ascending: bool


def read_filter(text: str, scope: Scope) -> list[Clause]:
    return [_clause(comparison, scope) for comparison in parse_filter(text)]


def wants_prompts(clauses: Sequence[Clause]) -> bool:
    """Prompts are among the models, and are shown to who asks for them only."""
    for clause in clauses:
        if clause.is_tag and clause.key == PROMPT_TAG:
            value = str(clause.value).lower()
            return (clause.comparator, value) in (("=", "true"), ("!=", "false"))
    return False


def read_model_orders(texts: Sequence[str]) -> list[Order]:
    def column(name: Name) -> str:
        if name.kind is not None or name.key not in _MODEL_ORDERS:
            raise InvalidInput(f"Invalid order by key '{_shown(name)}' specified. Valid keys are ['name', 'timestamp']")
        return _MODEL_ORDERS[name.key]

    parsed = [parse_order(text) for text in texts]
    return _once_each([Order(key=column(name), ascending=ascending) for name, ascending in parsed], texts)


def read_version_orders(texts: Sequence[str]) -> list[Order]:
    def column(name: Name) -> str:
        kinds = ("attribute", "attributes", "tag", "tags")
        if name.kind is not None and name.kind not in kinds:
            raise InvalidInput(f"Invalid entity type '{name.kind}'. Valid entity types are {kinds}")
        return _VERSION_ORDERS[_known(name.key, _VERSION_ORDERS)]

    parsed = [parse_order(text) for text in texts]
    return _once_each([Order(key=column(name), ascending=ascending) for name, ascending in parsed], texts)


def _clause(found: Comparison, scope: Scope) -> Clause:
    value = found.value
    if value is None or (value.kind == "path" and value.text.upper() in _KEYWORDS):
        shown = f"{_shown(found.name)} {found.op} {value.text if value else ''}".rstrip()
        raise InvalidInput(f"Invalid clause(s) in filter string: {shown}")
    kinds = ("attribute", "tag", "tags")
    if found.name.kind is not None and found.name.kind not in kinds:
        raise InvalidInput(f"Invalid entity type '{found.name.kind}'. Valid entity types are {kinds}")
    if found.name.kind in ("tag", "tags"):
        text = found.words("tag (e.g. 'my-value')")
        if found.op not in TEXTUAL:
            raise InvalidInput(f"Invalid comparator for tag: {found.op}")
        return Clause(is_tag=True, key=found.name.key, comparator=found.op, value=text)
    key = _known(found.name.key, scope.texts | scope.numbers)
    return Clause(is_tag=False, key=key, comparator=found.op, value=_attribute_value(key, found, scope))


def _attribute_value(key: str, found: Comparison, scope: Scope) -> Value:
    assert found.value is not None
    if found.has_list:
        if key not in scope.lists:
            raise InvalidInput(
                f"Only {sorted(scope.lists)} attributes support comparison with a list of quoted string values."
            )
        items = found.items()
        if found.op not in MEMBERSHIP:
            raise InvalidInput(f"Invalid comparator for attribute: {found.op}")
        return items
    is_number = found.value.kind == "number"
    if is_number and scope.numbers and key not in scope.numbers:
        raise InvalidInput(f"Only the '{sorted(scope.numbers)}' attributes support comparison with numeric values.")
    if is_number and not scope.numbers:
        raise InvalidInput(
            "Expected a quoted string value or a list of quoted string values for attributes."
            f" Got value {found.value.text}"
        )
    text = found.value.text if is_number else found.words("attributes")
    if key in scope.numbers:
        if found.op not in NUMERIC:
            raise InvalidInput(f"Invalid comparator for attribute {key}: {found.op}")
        return _whole(key, text)
    if found.op not in TEXTUAL:
        raise InvalidInput(f"Invalid comparator for attribute: {found.op}")
    return text


def _whole(key: str, text: str) -> int:
    """Beyond what the column can hold is no mistake: it is larger, or smaller, than all of them."""
    try:
        return max(-(2**31), min(2**31 - 1, int(text)))
    except ValueError:
        raise InvalidInput(f"Invalid value for numeric attribute '{key}': {text!r}") from None


def _known(key: str, keys: Mapping[str, str] | frozenset[str]) -> str:
    if key not in keys:
        raise InvalidInput(f"Invalid attribute key '{key}' specified. Valid keys are '{sorted(keys)}'")
    return key


def _once_each(orders: list[Order], texts: Sequence[str]) -> list[Order]:
    if len({order.key for order in orders}) != len(orders):
        raise WindlassError(f"`order_by` contains duplicate fields: {list(texts)}")
    return orders


def _shown(name: Name) -> str:
    return name.key if name.kind is None else f"{name.kind}.{name.key}"
