"""Rules over metrics: given a rule, what it has seen so far and what is new, does it apply? Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from windlass.core.quantities import format_duration
from windlass.wire.rules import Goal, RuleSpec, Then

MOST_FINDINGS = 20  # of one rule at once: a value that goes to and fro says no more by the hundredth time
MOST_NAMES = 100


class Value(NamedTuple):
    """One value of one metric."""

    name: str
    step: int | None
    at: float
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What a rule has seen of its run."""

    best: float | None = None
    best_step: int | None = None
    since_best: int = 0
    last_at: float | None = None
    applies: bool = False  # it has said so; it says so again only after it did not apply
    names: tuple[str, ...] = ()  # of a rule about any metric: those that it has said so of

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None and value != ()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Watched:
        known = {name: data[name] for name in cls.__slots__ if name in data}
        return cls(**{**known, "names": tuple(known.get("names", ()))})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule applies."""

    message: str
    at: float
    step: int | None
    then: Then
    metric: str | None = None  # None: there was no value of any
    value: float | None = None


def judge_values(rule: RuleSpec, watched: Watched, values: Iterable[Value]) -> tuple[Watched, list[Finding]]:
    """What the rule has seen after `values`, in their order, and what it found."""
    findings: list[Finding] = []
    for value in values:
        if rule.metric is not None and value.name != rule.metric:
            continue
        watched = replace(watched, last_at=max(value.at, watched.last_at or 0.0))
        if rule.silent is not None:
            watched = replace(watched, applies=False)
        elif value.step is None or value.step >= rule.after:
            watched, message = _judge(rule, watched, value)
            if message and len(findings) < MOST_FINDINGS:
                findings.append(_finding(rule, value, message))
    return watched, findings


def _finding(rule: RuleSpec, value: Value, message: str) -> Finding:
    return Finding(message=message, at=value.at, step=value.step, then=rule.then, metric=value.name, value=value.value)


def judge_silence(rule: RuleSpec, watched: Watched, *, since: float, now: float) -> tuple[Watched, Finding | None]:
    """`since`: when the run began to run. Values count from there, if none has come."""
    if rule.silent is None or watched.applies:
        return watched, None
    quiet_s = now - max(since, watched.last_at or 0.0)
    if quiet_s < rule.silent:
        return watched, None
    message = f"no value of {rule.metric or 'any metric'} for {format_duration(quiet_s)}"
    finding = Finding(message=message, at=now, step=None, then=rule.then, metric=rule.metric)
    return replace(watched, applies=True), finding


def _judge(rule: RuleSpec, watched: Watched, value: Value) -> tuple[Watched, str | None]:
    if rule.patience is not None:
        return _judge_patience(rule, watched, value)
    applies, message = _applies_now(rule, value)
    if rule.metric is None:
        known = value.name in watched.names
        if applies == known or (applies and len(watched.names) >= MOST_NAMES):
            return watched, None
        names = (*watched.names, value.name) if applies else tuple(n for n in watched.names if n != value.name)
        return replace(watched, names=names), message if applies else None
    return replace(watched, applies=applies), message if applies and not watched.applies else None


def _applies_now(rule: RuleSpec, value: Value) -> tuple[bool, str]:
    if rule.nan:
        return not math.isfinite(value.value), f"{value.name} is {value.value:g}"
    if rule.above is not None:
        return value.value > rule.above, f"{value.name} is {value.value:g}, above {rule.above:g}"
    assert rule.below is not None  # a rule has one of them
    return value.value < rule.below, f"{value.name} is {value.value:g}, below {rule.below:g}"


def _judge_patience(rule: RuleSpec, watched: Watched, value: Value) -> tuple[Watched, str | None]:
    assert rule.patience is not None
    if _is_better(rule, value.value, watched.best):
        return replace(watched, best=value.value, best_step=value.step, since_best=0, applies=False), None
    watched = replace(watched, since_best=watched.since_best + 1)
    if watched.since_best < rule.patience or watched.applies:
        return watched, None
    at = "" if watched.best_step is None else f" at step {watched.best_step:,}"
    best = "none so far" if watched.best is None else f"{watched.best:g}{at}"
    return replace(watched, applies=True), f"{value.name} is no better for {watched.since_best:,} values (best: {best})"


def _is_better(rule: RuleSpec, value: float, best: float | None) -> bool:
    if not math.isfinite(value):
        return False
    if best is None:
        return True
    return value < best - rule.min_delta if rule.goal is Goal.MIN else value > best + rule.min_delta
