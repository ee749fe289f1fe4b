"""Runs side by side: which values of what they have differ. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from windlass.wire.comparison import ComparedRow, ComparedRun, ComparedTopic, Comparison, Topic
from windlass.wire.figures import spelled

Value = str | float | None
_RECORDED = (Topic.CODE, Topic.ENVIRONMENT)

# Words in names of metrics that tell which end is better; the last one in a name decides.
_LESS_IS_BETTER = frozenset(("loss", "error", "perplexity", "ppl", "mse", "rmse", "mae", "wer", "cer", "fid", "nll"))
_MORE_IS_BETTER = frozenset(
    ("acc", "accuracy", "f1", "auc", "bleu", "rouge", "map", "iou", "recall", "precision", "mfu", "r2")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What is known of a run, by topic: plain names and values."""

    id: str
    name: str
    state: str
    project: str | None = None
    topics: Mapping[Topic, Mapping[str, Value]] = field(default_factory=dict)


def compare(found: Sequence[RunFacts], *, everything: bool = False) -> Comparison:
    """Rows that differ; with `everything` those too that do not. Metrics and cost are always shown: equal ones say
    something as well."""
    topics = []
    for topic in Topic:
        always = everything or topic in (Topic.METRICS, Topic.COST)
        rows = [row for row in _rows(topic, [facts.topics.get(topic, {}) for facts in found]) if always or row.differs]
        if rows:
            topics.append(ComparedTopic(topic=topic, rows=rows))
    heads = [ComparedRun(id=run.id, name=run.name, state=run.state, project=run.project) for run in found]
    return Comparison(runs=heads, topics=topics)


def _rows(topic: Topic, columns: Sequence[Mapping[str, Value]]) -> list[ComparedRow]:
    keys = dict.fromkeys(key for column in columns for key in column)  # in the order of the first run that has them
    rows = []
    for key in keys:
        values = [_plain(column.get(key)) for column in columns]
        best = _best(key, values) if topic is Topic.METRICS else None
        # A run of which nothing is recorded (it ended at once, or its code is gone) differs in nothing.
        known = [value for value, column in zip(values, columns, strict=True) if column or topic not in _RECORDED]
        rows.append(ComparedRow(key=key, values=values, differs=len(set(known)) > 1, best=best))
    return rows


def _plain(value: Value) -> Value:
    return spelled(value) if isinstance(value, float) else value


def _best(key: str, values: Sequence[Value]) -> int | None:
    words = key.lower().replace("/", "_").replace("-", "_").replace(".", "_").replace(" ", "_").split("_")
    known = [word for word in words if word in _LESS_IS_BETTER or word in _MORE_IS_BETTER]
    numbers = {place: value for place, value in enumerate(values) if isinstance(value, (int, float))}
    if not known or len(set(numbers.values())) < 2:
        return None
    pick = min if known[-1] in _LESS_IS_BETTER else max
    return pick(numbers, key=lambda place: numbers[place])
