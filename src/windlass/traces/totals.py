"""Tokens and cost of a whole trace out of its spans. Some libraries write on a parent what its children together used:
whoever has an ancestor that says something is not counted again.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from windlass.traces.spans import load_json

TOKENS = ("input_tokens", "output_tokens", "total_tokens")
CACHE_TOKENS = (
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "cache_creation_input_tokens_above_1hr",
)
COSTS = ("input_cost", "output_cost", "total_cost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What one span says of itself, if anything."""

    id: str
    parent: str | None
    amounts: Mapping[str, Any] | None


def said_of(id: str, parent: str | None, attribute: Any) -> Said:
    amounts = load_json(load_json(attribute))
    return Said(id=id, parent=parent, amounts=amounts if isinstance(amounts, dict) else None)


def total_tokens(spans: Iterable[Said]) -> dict[str, int] | None:
    totals = _total(list(spans), TOKENS, CACHE_TOKENS)
    return None if totals is None else {key: int(value) for key, value in totals.items()}


def total_cost(spans: Iterable[Said]) -> dict[str, float] | None:
    totals = _total(list(spans), COSTS, ())
    return None if totals is None else {key: float(value) for key, value in totals.items()}


def _total(spans: list[Said], always: tuple[str, ...], maybe: tuple[str, ...]) -> dict[str, float] | None:
    known = {span.id for span in spans}
    children: defaultdict[str, list[Said]] = defaultdict(list)
    waiting: list[tuple[Said, bool]] = []
    for span in spans:
        if span.parent in known and span.parent is not None:
            children[span.parent].append(span)
        else:
            waiting.append((span, False))
    totals: dict[str, float] = dict.fromkeys(always, 0)
    found = False
    while waiting:
        span, counted = waiting.pop()
        if span.amounts is not None and not counted:
            found = True
            for key in (*always, *(key for key in maybe if key in span.amounts)):
                totals[key] = totals.get(key, 0) + number(span.amounts.get(key))
        waiting += ((child, counted or span.amounts is not None) for child in children[span.id])
    return totals if found else None


def number(value: Any) -> float:
    """Zero for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    try:
        return value if math.isfinite(value) else 0
    except OverflowError:  # a whole number beyond all others
        return 0
