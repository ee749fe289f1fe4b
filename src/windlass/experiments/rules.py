"""What names, values and batches may be: MLflow's limits, in MLflow's words, since its clients show them to people and
some go by them. Every function raises InvalidInput. Pure.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

from windlass.core.errors import InvalidInput
from windlass.experiments.types import DatasetInput, Metric, Pair

LONGEST_KEY = 250
LONGEST_PARAM = 6_000
LONGEST_TAG = 8_000
LONGEST_EXPERIMENT_TAG = 20_000
LONGEST_EXPERIMENT_NAME = 500
LONGEST_LOCATION = 2_048
MOST_METRICS = 1_000
MOST_PARAMS_OR_TAGS = 100
MOST_IN_BATCH = 1_000
LONGEST_BATCH_BYTES = 1_000_000
MOST_RESULTS = 50_000
MOST_VIEWS = 50
LONGEST_AGE = 32

_VIEW_TAG = "mlflow.customView.view"
_ARCHIVAL_TAG = "mlflow.trace.archivalRetention"
_ARCHIVE_NOW_TAG = "mlflow.trace.archiveNow"
_AGE = re.compile(r"[1-9]\d*[mhd]", re.ASCII)
_NAME = re.compile(r"[/\w.\- :]*")
_RUN_ID = re.compile(r"[a-zA-Z0-9][\w\-]{0,255}")
_BAD_CHARACTERS = (
    "Names may only contain alphanumerics, underscores (_), dashes (-), periods (.), spaces ( ), colon(:) and slashes"
    " (/)."
)
_BAD_IN_MODEL_NAME = ("/", ":", ".", "%", '"', "'")
_DATASET_LIMITS = (("name", 500), ("digest", 36), ("source", 65_535), ("schema", 1_048_575), ("profile", 16_777_215))


def invalid(path: str, value: Any, why: str = "") -> InvalidInput:
    shown = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return InvalidInput(f"Invalid value {shown} for parameter '{path}' supplied" + (f": {why}" if why else "."))


def missing(path: str) -> InvalidInput:
    return InvalidInput(f"Missing value for required parameter '{path}'.")


def check_name(name: str, path: str) -> None:
    """Of a metric, a param or a tag."""
    if (why := _wrong_with(name)) is not None:
        raise invalid(path, name, why)


@lru_cache(maxsize=4_096)  # the same few names come with every point
def _wrong_with(name: str) -> str | None:
    if _NAME.fullmatch(name) is None:
        return _BAD_CHARACTERS
    norm = posixpath.normpath(name)
    if norm != name or norm == "." or norm.startswith(("..", "/")):
        return (
            "Names may be treated as files in certain cases, and must not resolve to other names when treated as such."
            f" This name would resolve to {norm!r}"
        )
    return None


def check_length(what: str, limit: int, value: str) -> None:
    if len(value) > limit:
        raise InvalidInput(f"'{what}' exceeds the maximum length of {limit} characters")


def check_metric(metric: Metric, path: str = "") -> None:
    if (why := _wrong_with(metric.key)) is not None:
        raise invalid(_within(path, "name"), metric.key, why)
    if metric.at_ms < 0:
        why = f"metric '{metric.key}' (value={metric.value}). Timestamp must be a nonnegative long (64-bit integer) "
        raise invalid(_within(path, "timestamp"), metric.at_ms, why)
    if len(metric.key) > LONGEST_KEY:
        check_length("Metric name", LONGEST_KEY, metric.key)


def check_metrics(metrics: Sequence[Metric]) -> None:
    """Of a batch: a thousand points have a few names."""
    names = {metric.key for metric in metrics}
    if any(_wrong_with(name) is not None or len(name) > LONGEST_KEY for name in names) or any(
        metric.at_ms < 0 for metric in metrics
    ):
        for number, metric in enumerate(metrics):  # which of them it is
            check_metric(metric, f"metrics[{number}]")


def checked_param(param: Pair, path: str = "", *, cut: bool = True) -> Pair:
    """Values that are too long are cut, as MLflow's server does unless it is told to refuse them."""
    check_name(param.key, _within(path, "key"))
    check_length("Param key", LONGEST_KEY, param.key)
    if not cut:
        check_length("Param value", LONGEST_PARAM, param.value)
    return Pair(param.key, param.value[:LONGEST_PARAM])


def checked_tag(tag: Pair, path: str = "", *, cut: bool = True) -> Pair:
    check_name(tag.key, _within(path, "key"))
    check_length(_within(path, "key"), LONGEST_KEY, tag.key)
    if not cut:
        check_length(_within(path, "value"), LONGEST_TAG, tag.value)
    return Pair(tag.key, tag.value[:LONGEST_TAG])


def check_experiment_tag(tag: Pair) -> None:
    check_name(tag.key, "key")
    check_length("key", LONGEST_KEY, tag.key)
    check_length("value", LONGEST_EXPERIMENT_TAG, tag.value)
    if tag.key == _ARCHIVAL_TAG:
        _check_archival(tag.value, "value", kind="duration")
    elif tag.key == _ARCHIVE_NOW_TAG:
        _check_archival(tag.value, "older_than")


def _check_archival(value: str, name: str, *, kind: str | None = None) -> None:
    """How old traces are when they are archived; without a kind, the age may be left out."""
    try:
        said = json.loads(value)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise InvalidInput("Trace archival config must be encoded as a JSON object.")
    if kind is not None and said.get("type") != kind:
        raise InvalidInput(f"Trace archival config must use type '{kind}'.")
    age = said.get(name)
    if age is None and kind is None:
        return
    if not isinstance(age, str) or not _AGE.fullmatch(age.strip()):
        raise InvalidInput(
            "Trace archival retention must be in the form `<int><unit>`, where unit is one of 'm', 'h', or 'd'."
        )
    if len(age.strip()) > LONGEST_AGE:
        raise InvalidInput(f"Trace archival duration must be at most {LONGEST_AGE} characters.")


def check_views(keys: Collection[str], experiment_id: int | None = None) -> None:
    """`keys`: of all tags that the experiment is to have."""
    if sum(key.startswith(_VIEW_TAG) for key in keys) > MOST_VIEWS:
        whose = "" if experiment_id is None else f" for experiment {experiment_id}"
        raise InvalidInput(
            f"Unable to create another custom view{whose}; the maximum number of custom views per experiment is"
            f" {MOST_VIEWS}. Delete an existing custom view before creating a new one."
        )


def check_experiment_name(name: str) -> None:
    if not name.strip():
        raise InvalidInput(f"Invalid experiment name: '{name}'")
    check_length("name", LONGEST_EXPERIMENT_NAME, name)


def check_run_id(run_id: str) -> None:
    if _RUN_ID.fullmatch(run_id) is None:
        raise invalid("run_id", run_id)


def check_batch(metrics: Sequence[Metric], params: Sequence[Pair], tags: Sequence[Pair]) -> None:
    for what, most, count in (
        ("metrics", MOST_METRICS, len(metrics)),
        ("params", MOST_PARAMS_OR_TAGS, len(params)),
        ("tags", MOST_PARAMS_OR_TAGS, len(tags)),
        ("metrics, params, and tags", MOST_IN_BATCH, len(metrics) + len(params) + len(tags)),
    ):
        if count > most:
            raise InvalidInput(
                f"A batch logging request can contain at most {most} {what}. Got {count} {what}. Please split up {what}"
                " across multiple requests and try again."
            )
    seen: set[str] = set()
    if again := [param.key for param in params if param.key in seen or seen.add(param.key)]:  # type: ignore[func-returns-value]
        raise InvalidInput(
            f"Duplicate parameter keys have been submitted: {again}. Please ensure the request contains only one param"
            " value per param key."
        )


def check_dataset(given: DatasetInput) -> None:
    for name, limit in _DATASET_LIMITS:
        check_length(name, limit, getattr(given.dataset, name) or "")
    for tag in given.tags:
        check_length("key", 255, tag.key)
        check_length("value", 500, tag.value)


def check_model_name(name: str | None) -> None:
    if name is not None and (not name or any(character in name for character in _BAD_IN_MODEL_NAME)):
        raise InvalidInput(
            f"Invalid model name ({name!r}) provided. Model name must be a non-empty string and cannot contain the"
            f" following characters: {_BAD_IN_MODEL_NAME}"
        )


def check_max_results(most: int) -> None:
    if most < 1:
        raise InvalidInput(f"Invalid value {most} for parameter 'max_results' supplied. It must be a positive integer")
    if most > MOST_RESULTS:
        raise InvalidInput(
            f"Invalid value {most} for parameter 'max_results' supplied. It must be at most {MOST_RESULTS}"
        )


def experiment_number(experiment_id: str | int) -> int:
    """MLflow takes an empty one for the default experiment."""
    try:
        number = int(experiment_id or 0)
        if abs(number) >= 2**31:
            raise ValueError
    except ValueError:
        message = f"Invalid experiment ID '{experiment_id}'. Experiment ID must be a valid integer."
        raise InvalidInput(message) from None
    return number


def _within(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
