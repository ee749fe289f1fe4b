"""Lists within calls: tags, params, metrics, datasets. A bad item is named by its place. Each raises InvalidInput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from windlass.api.mlflow.fields import invalid
from windlass.core.errors import InvalidInput
from windlass.core.storable import is_storable
from windlass.experiments.rules import missing
from windlass.experiments.types import Dataset, DatasetInput, Metric, ModelOutput, Pair

_LEAST, _MOST = -(2**63), 2**63
_USUAL = itemgetter("key", "value", "timestamp", "step")


def read_pairs(given: Sequence[Any], path: str, *, keyed: bool = False) -> list[Pair]:
    """`keyed`: each must have a key."""
    found = []
    for number, item in enumerate(given):
        if not isinstance(item, dict):
            raise InvalidInput(invalid(path, list(given)))
        key, value = item.get("key"), item.get("value")
        if key is None and keyed:
            raise missing(f"{path}[{number}].key")
        for each in (key, value):
            if each is not None and not isinstance(each, str):
                raise InvalidInput(invalid(path, list(given)))
            if each and not is_storable(each):
                raise InvalidInput(f"{path}[{number}] holds a NUL or half of a character, which no database can keep")
        found.append(Pair(key or "", value or ""))
    return found


def read_metrics(given: Sequence[Any], path: str = "metrics") -> list[Metric]:
    return _usual_metrics(given) or [_metric(item, number, given, path) for number, item in enumerate(given)]


def _usual_metrics(given: Sequence[Any]) -> list[Metric] | None:
    """What clients send as a rule is looked at by columns: a batch has a thousand points. None for anything else, which
    may be wrong or not."""
    try:
        keys, values, times, steps = zip(*map(_USUAL, given), strict=True)
    except (KeyError, TypeError, ValueError):
        return None
    kinds = [set(map(type, column)) for column in (keys, values, times, steps)]
    if kinds != [{str}, {float}, {int}, {int}] or not all(keys) or max(map(len, given)) > len(kinds):
        return None
    if not all(_LEAST <= number < _MOST for column in (times, steps) for number in (min(column), max(column))):
        return None
    return list(map(Metric, keys, values, times, steps))


def _metric(item: Any, number: int, given: Sequence[Any], path: str) -> Metric:
    if not isinstance(item, dict):
        raise InvalidInput(invalid(path, list(given)))
    key: Any = item.get("key")
    value: Any = item.get("value")
    at_ms: Any = item.get("timestamp")
    step: Any = item.get("step", 0)
    usual = type(value) is float and type(at_ms) is int and type(step) is int and type(key) is str
    if not usual or not key:
        for name, each in (("key", key), ("value", value), ("timestamp", at_ms)):
            if each is None or each == "":
                raise missing(f"{path}[{number}].{name}")
        value = _number(value, given, path)
        at_ms = _whole(at_ms, given, path)
        step = 0 if step is None else _whole(step, given, path)
    if type(key) is not str or not (_LEAST <= at_ms < _MOST and _LEAST <= step < _MOST):
        raise InvalidInput(invalid(path, list(given)))
    if len(item) <= 4:
        return Metric(key, value, at_ms, step)
    return Metric(key, value, at_ms, step, *[item.get(name) or None for name in _MODEL])


_MODEL = ("model_id", "dataset_name", "dataset_digest")


def read_datasets(given: Sequence[Any]) -> list[DatasetInput]:
    found = []
    for item in given:
        dataset = item.get("dataset") if isinstance(item, dict) else None
        if not isinstance(dataset, dict):
            raise InvalidInput("Dataset cannot be None")
        tags = read_pairs(item.get("tags") or (), "datasets")
        found.append(DatasetInput(dataset=_dataset(dataset), tags=tags))
    return found


def read_models(given: Sequence[Any]) -> list[ModelOutput]:
    found = []
    for item in given:
        if not isinstance(item, dict) or not isinstance(item.get("model_id"), str):
            raise InvalidInput(invalid("models", list(given)))
        found.append(ModelOutput(item["model_id"], _whole(item.get("step") or 0, given, "models")))
    return found


def _dataset(given: Mapping[str, Any]) -> Dataset:
    for name in ("name", "digest", "source_type", "source"):
        if not isinstance(given.get(name, ""), str):
            raise InvalidInput(invalid("datasets", dict(given)))
    for name in ("schema", "profile"):
        if not isinstance(given.get(name), str | None):
            raise InvalidInput(invalid("datasets", dict(given)))
    return Dataset(
        name=given.get("name", ""),
        digest=given.get("digest", ""),
        source_type=given.get("source_type", ""),
        source=given.get("source", ""),
        schema=given.get("schema"),
        profile=given.get("profile"),
    )


def _number(value: Any, given: Sequence[Any], path: str) -> float:
    """NaN and infinities come as text."""
    try:
        if isinstance(value, bool):
            raise ValueError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(invalid(path, list(given))) from None


def _whole(value: Any, given: Sequence[Any], path: str) -> int:
    try:
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ValueError
        return int(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(invalid(path, list(given))) from None
