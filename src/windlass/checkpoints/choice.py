"""Which checkpoint is meant, which is the best, and which may be removed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from windlass.checkpoints.types import CheckpointRecord
from windlass.core.errors import Ambiguous, NotFound
from windlass.core.manifest import Tier

NEWEST, BEST = "newest", "best"
NEAREST = Tier.FOLDER  # the tier that a run looks into first


@dataclass(frozen=True, slots=True, kw_only=True)
class BestRule:
    """The metric that tells which checkpoint is the best."""

    metric: str = "loss"
    highest: bool = False


def newest_first(records: Iterable[CheckpointRecord]) -> list[CheckpointRecord]:
    return sorted(records, key=_age, reverse=True)


def decide_newest(records: Iterable[CheckpointRecord]) -> CheckpointRecord | None:
    """Of the good ones, that which a run would go on from."""
    return max((record for record in records if record.is_good), key=_age, default=None)


def decide_best(records: Iterable[CheckpointRecord], rule: BestRule) -> CheckpointRecord | None:
    """Of the good ones that know the metric; of equals the newest."""
    sign = 1.0 if rule.highest else -1.0
    judged = [record for record in records if record.is_good and rule.metric in record.metrics]
    return max(judged, key=lambda record: (sign * record.metrics[rule.metric], *_age(record)), default=None)


def decide_refusal(
    records: Sequence[CheckpointRecord], wanted: Sequence[CheckpointRecord], *, run_is_over: bool
) -> str | None:
    """Why `wanted`, one checkpoint at one place or more, cannot be removed, if so. What a run that is not over would
    go on from stays at one place at least, whatever else is there: the run itself may be removing the others at this
    very moment."""
    newest = decide_newest(records)
    if run_is_over or newest is None or not newest.is_same(wanted[0]):
        return None
    going = {record.id for record in wanted}
    if any(record.is_good and record.is_same(newest) and record.id not in going for record in records):
        return None
    return f"step {newest.step} is the newest good checkpoint of run {newest.run_id}, which is not over"


def copies_of(records: Iterable[CheckpointRecord], one: CheckpointRecord) -> list[CheckpointRecord]:
    """The same checkpoint at all of its places, the nearest first."""
    return sorted((record for record in records if record.is_same(one)), key=_nearness, reverse=True)


def by_checkpoint(records: Iterable[CheckpointRecord]) -> list[list[CheckpointRecord]]:
    """Each with its places, newest first; of the places a good one first, then the nearest."""
    found: dict[tuple[int, float], list[CheckpointRecord]] = {}
    for record in newest_first(records):
        found.setdefault((record.step, record.created_at), []).append(record)
    return [sorted(places, key=lambda r: (r.is_good, *_nearness(r)), reverse=True) for places in found.values()]


def find(records: Sequence[CheckpointRecord], which: str, rule: BestRule) -> CheckpointRecord:
    """By step, id, beginning of an id, `newest` or `best`. Raises NotFound or Ambiguous."""
    if which in (NEWEST, BEST):
        found = decide_newest(records) if which == NEWEST else decide_best(records, rule)
        if found is None:
            of = f" with the metric '{rule.metric}'" if which == BEST and any(r.is_good for r in records) else ""
            raise NotFound(f"the run has no good checkpoint{of}", hint="`windlass checkpoints ls -a` lists all")
        return found
    if which.isdecimal():
        at_step = [record for record in newest_first(records) if record.step == int(which)]
        if at_step:
            return max(at_step, key=lambda record: (record.is_good, *_age(record)))
    elif matching := [record for record in records if record.id.startswith(which)]:
        if len(matching) > 1:
            raise Ambiguous(f"'{which}' is short for {len(matching)} checkpoints", hint="type one character more")
        return matching[0]
    steps = ", ".join(str(record.step) for record in newest_first(records)[:5])
    raise NotFound(
        f"the run has no checkpoint '{which}'",
        hint=f"write a step ({steps}), an id, `newest` or `best`" if steps else "it has saved none so far",
    )


def _age(record: CheckpointRecord) -> tuple[int, float, bool, str]:
    return record.step, record.created_at, *_nearness(record)


def _nearness(record: CheckpointRecord) -> tuple[bool, str]:
    return record.tier == NEAREST, record.id
