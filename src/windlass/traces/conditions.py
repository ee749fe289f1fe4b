"""What searches of traces may ask for, and in which words it is refused: MLflow's language with its names and rules."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from windlass.core.errors import InvalidInput
from windlass.core.patterns import pattern_of
from windlass.experiments.language import Clause, Name, parse_filter, parse_order
from windlass.traces.types import LINKED_PROMPTS, SOURCE_RUN, TRACE_NAME

_NUMBERS = ("timestamp_ms", "timestamp", "execution_time_ms", "execution_time", "end_time_ms", "end_time")
_ATTRIBUTES = (*_NUMBERS, "request_id", "status", "client_request_id", "name", "run_id", "prompt", "text")
_ORDERS = (*_NUMBERS, "experiment_id", "status", "request_id", "name", "run_id")
_LISTED = ("name", "status", "request_id", "run_id", "client_request_id")
_ENTITIES = {
    "tag": "tag",
    "tags": "tag",
    "attribute": "attribute",
    "attributes": "attribute",
    "trace": "attribute",
    "request_metadata": "request_metadata",
    "metadata": "request_metadata",
    "span": "span",
    "feedback": "feedback",
    "expectation": "expectation",
    "issue": "issue",
}
_ALIASES = {"timestamp": "timestamp_ms", "execution_time": "execution_time_ms", "end_time": "end_time_ms"}
_MOVED = {
    "name": ("tag", TRACE_NAME),
    "prompt": ("tag", LINKED_PROMPTS),
    "run_id": ("request_metadata", SOURCE_RUN),
    "text": ("span", "content"),
}

_ORDERING = (">", ">=", "<", "<=")
_TEXTS = ("!=", "=", "LIKE", "ILIKE", "RLIKE")
_NULLS = ("IS NULL", "IS NOT NULL")
_LISTS = ("IN", "NOT IN")
_LONGEST_PATTERN = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    entity: str  # attribute, tag, request_metadata, span, feedback, expectation or issue
    key: str
    comparator: str
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    entity: str
    key: str
    ascending: bool


def read_conditions(text: str | None) -> list[Condition]:
    """Raises InvalidInput."""
    return [_condition(clause) for clause in parse_filter(text)]


def read_orders(texts: Collection[str]) -> list[Order]:
    orders = []
    for text in texts:
        name, ascending = parse_order(text)
        entity, key = _moved(*_identify(name, _ORDERS))
        if entity not in ("attribute", "tag", "request_metadata"):
            raise InvalidInput(f"Invalid identifier type '{entity}'")
        orders.append(Order(entity=entity, key=key, ascending=ascending))
    if len({(order.entity, order.key) for order in orders}) < len(orders):
        raise InvalidInput(f"`order_by` contains duplicate fields: {list(texts)}")
    return orders


def _identify(name: Name, attributes: Collection[str]) -> tuple[str, str]:
    if name.kind is not None and name.kind not in _ENTITIES:
        raise InvalidInput(f"Invalid entity type '{name.kind}'. Valid values are {sorted(_ENTITIES)}")
    entity = "attribute" if name.kind is None else _ENTITIES[name.kind]
    if entity == "attribute" and name.key not in attributes:
        raise InvalidInput(f"Invalid attribute key '{name.key}' specified. Valid keys are '{sorted(attributes)}'")
    return entity, name.key


def _moved(entity: str, key: str) -> tuple[str, str]:
    """Some names stand for tags, metadata and texts of spans. Names of spans are their own."""
    if entity == "span":
        return entity, key
    if key.lower() in _MOVED:
        return _MOVED[key.lower()]
    return entity, _ALIASES.get(key.lower(), key)


def _condition(clause: Clause) -> Condition:
    entity, key = _identify(clause.name, _ATTRIBUTES)
    value = None if clause.op in _NULLS else _value(clause, entity, key)
    if entity == "span":
        _check_span(key, clause.op)
    entity, key = _moved(entity, key)
    _check_comparator(entity, key, clause.op)
    if clause.op == "RLIKE":
        _check_pattern(value)
    if entity == "tag" and key == LINKED_PROMPTS:
        _check_prompt(clause.op, value)
    return Condition(entity=entity, key=key, comparator=clause.op, value=value)


def _value(clause: Clause, entity: str, key: str) -> Any:
    if entity in ("feedback", "expectation"):
        return _assessment_value(clause, entity)
    if clause.has_list:
        if entity == "attribute" and key not in _LISTED:
            raise InvalidInput(
                f"Only attributes in {sorted(_LISTED)} supports comparison with a list of quoted string values."
            )
        if entity in ("attribute", "tag", "span"):
            return clause.items()
    if entity == "attribute" and is_number(clause):
        if key not in _NUMBERS:
            raise InvalidInput(f"Only the '{sorted(_NUMBERS)}' attributes support comparison with numeric values.")
        return clause.number(key)
    return clause.words(f"{entity} (e.g. 'my-value')")


def _assessment_value(clause: Clause, entity: str) -> Any:
    if clause.op not in _ORDERING:
        return clause.words(f"{entity} (e.g. 'my-value')")
    if not is_number(clause):
        shown = clause.value.text if clause.value else "nothing"
        raise InvalidInput(
            f"Expected a numeric value for {entity} when using comparator '{clause.op}'. Got value {shown}"
        )
    return clause.number(entity)


def is_number(clause: Clause) -> bool:
    return clause.value is not None and clause.value.kind == "number"


def unquoted(name: str) -> str:
    return name[1:-1] if len(name) >= 2 and name[0] == name[-1] and name[0] in "`\"'" else name


def _check_span(key: str, comparator: str) -> None:
    known = "Supported attributes: name, status, type, attributes.<attribute_name>."
    if key.startswith("attributes."):
        if not unquoted(key.removeprefix("attributes.")):
            raise InvalidInput("Span attribute name cannot be empty after 'attributes.'")
        allowed: tuple[str, ...] = (*_TEXTS, *_LISTS)
    elif key in ("name", "type", "status"):
        allowed = (*_TEXTS, *_LISTS)
    elif key == "content":
        allowed = ("LIKE", "ILIKE")
    else:
        raise InvalidInput(f"Invalid span attribute '{key}'. {known}")
    if comparator not in allowed:
        raise InvalidInput(f"span.{key} comparator '{comparator}' not one of '{sorted(allowed)}'")


def _check_comparator(entity: str, key: str, comparator: str) -> None:
    if entity == "span":
        return _check_span(key, comparator)
    if entity == "issue":
        if key != "id":
            raise InvalidInput(f"Invalid issue attribute '{key}'. Supported attributes: id")
        if comparator != "=":
            raise InvalidInput(f"issue.{key} comparator '{comparator}' not one of '['=']'")
        return None
    if entity in ("feedback", "expectation"):
        allowed: tuple[str, ...] = (*_TEXTS, *_ORDERING, *_NULLS)
    elif entity == "attribute":
        allowed = ("=", "!=", *_ORDERING) if key in _NUMBERS else (*_TEXTS, *_LISTS)
    else:
        allowed = (*_TEXTS, *_NULLS)
    if comparator not in allowed:
        what = f"assessment.{key} comparator" if entity in ("feedback", "expectation") else "Invalid comparator"
        raise InvalidInput(f"{what} '{comparator}' not one of '{sorted(allowed)}'")
    return None


def _check_pattern(text: Any) -> None:
    if len(text) > _LONGEST_PATTERN:
        raise InvalidInput(f"a pattern has at most {_LONGEST_PATTERN} characters, not {len(text)}")
    pattern_of(text)


def _check_prompt(comparator: str, value: Any) -> None:
    if comparator != "=":
        raise InvalidInput(
            f"Invalid comparator '{comparator}' for prompts filter. "
            "Only '=' is supported with format: prompt = \"name/version\""
        )
    if value.count("/") != 1:
        raise InvalidInput(f"Invalid prompts filter value '{value}'. Expected format: prompt = \"name/version\"")
