"""Metric points and what is derived from them: summaries, progress, ETA. Pure."""

from __future__ import annotations

import enum
import functools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from windlass.core.storable import storable_text
from windlass.tracking.saves import SaveNote, read_note

_LONGEST_NAME = 250
_LONGEST_KIND = 60
_LONGEST_TEXT = 2_000
_MOST_STEPS = 2**53  # more is how somebody says something else


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPoint:
    at: float
    step: int | None
    values: Mapping[str, float]
    total: int | None = None
    of_board: bool = False  # read from a file of TensorBoard's


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Something a process wants people to know of."""

    at: float
    step: int | None
    kind: str
    message: str
    once: bool = False  # other processes may say the same


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanNote:
    """The plan that a process says the run trains by."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """The latest point of a metric: the greatest by (step, at, value), as MLflow has it. No step comes before all
    steps, and NaN counts as 0 among values of the same step and time."""

    value: float
    step: int | None
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Of all points of a metric. `last` is the value of the latest one; null is NaN. `min` and `max` are of what is a
    number."""

    last: float | None = None
    last_step: int | None = None
    last_at: float | None = None
    min: float | None = None
    max: float | None = None
    count: int = 0

    def joined(self, other: Summary) -> Summary:
        newer = other if _place(other) >= _place(self) else self
        return Summary(
            last=newer.last,
            last_step=newer.last_step,
            last_at=newer.last_at,
            min=_pick(min, self.min, other.min),
            max=_pick(max, self.max, other.max),
            count=self.count + other.count,
        )

    @property
    def latest(self) -> Latest:
        value = math.nan if self.last is None else self.last
        return Latest(value=value, step=self.last_step, at=self.last_at or 0.0)


def _place(summary: Summary) -> tuple[float, float, float]:
    step = -math.inf if summary.last_step is None else summary.last_step
    return step, summary.last_at or 0.0, summary.last or 0.0


def greatest(values: Iterable[float]) -> float:
    """Of values of the same step and time: NaN counts as 0."""
    return max(values, key=lambda value: 0.0 if math.isnan(value) else value)


class Teller(enum.IntEnum):
    """Who says how far a run is: the lower ones count only as long as no higher one has told a step."""

    PRINTED = 1
    MLFLOW = 2
    BOARDS = 3
    JOB = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressMark:
    step: int
    total: int | None
    at: float
    first_step: int
    first_at: float
    # None: not known, as in what the version before wrote. It is whose turn it is.
    teller: Teller | None = None
    attempt: int | None = None

    def eta_s(self) -> float | None:
        done, took = self.step - self.first_step, self.at - self.first_at
        if self.total is None or done <= 0 or took <= 0:
            return None
        return max(0.0, (self.total - self.step) * took / done)


def progress_told(
    mark: ProgressMark | None,
    teller: Teller,
    *,
    step: int,
    at: float,
    total: int | None = None,
    attempt: int | None = None,
) -> ProgressMark | None:
    """What becomes of a mark when somebody tells a step. A new attempt begins anew, and so does a higher teller: their
    steps need not be the same things."""
    if step >= _MOST_STEPS:
        return mark
    if mark is not None and None not in (attempt, mark.attempt) and attempt != mark.attempt:
        if attempt < mark.attempt:  # type: ignore[operator]
            return mark
        mark = None
    if mark is not None and mark.teller is not None and teller != mark.teller:
        if teller < mark.teller:
            return mark
        mark = None
    if mark is None:
        return ProgressMark(step=step, total=total, at=at, first_step=step, first_at=at, teller=teller, attempt=attempt)
    if teller in (Teller.MLFLOW, Teller.BOARDS) and step <= mark.step:
        return mark  # they come late, and count other things beside steps, from lower numbers
    if teller is Teller.PRINTED and at <= mark.at:
        return mark
    total = mark.total if total is None else total
    # Ranks that were started again in place, or the next of several bars.
    is_new = step < mark.step or (teller is Teller.PRINTED and total != mark.total)
    return ProgressMark(
        step=step,
        total=total,
        at=at,
        first_step=step if is_new else mark.first_step,
        first_at=at if is_new else mark.first_at,
        teller=teller,
        attempt=mark.attempt if attempt is None else attempt,
    )


def progress_after(
    mark: ProgressMark | None, points: Iterable[MetricPoint], *, attempt: int | None = None
) -> ProgressMark | None:
    for point in points:
        if point.step is not None:
            teller = Teller.BOARDS if point.of_board else Teller.JOB
            mark = progress_told(mark, teller, step=point.step, at=point.at, total=point.total, attempt=attempt)
    return mark


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedProgress:
    """What a rank says of itself in its output."""

    step: int
    total: int
    at: float


def read_printed(found: Any) -> PrintedProgress | None:
    """From a node's sample. Programs can write into the folder of their node: what is none is passed over."""
    try:
        step, total, at = _int(found["step"]), _int(found["total"]), _time(found["at"])
    except (TypeError, ValueError, KeyError, OverflowError):
        return None
    return PrintedProgress(step=step, total=total, at=at) if step is not None and total is not None else None


@dataclass(slots=True, kw_only=True)
class SpoolChunk:
    """Whole lines read from a spool, and where the next read begins."""

    points: list[MetricPoint] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    saves: list[SaveNote] = field(default_factory=list)
    plan: str | None = None  # the last that was told
    next_position: int = 0
    bad_lines: int = 0


def parse_spool(data: bytes, position: int) -> SpoolChunk:
    """Points, alerts and notes of checkpoints and plans of the complete lines in `data`, which was read at `position`.
    A line that is none of them is counted, not fatal: the spool is written by user processes that may die at any
    moment."""
    end = data.rfind(b"\n") + 1
    chunk = SpoolChunk(next_position=position + end)
    for line in data[:end].splitlines():
        found = _read(line)
        if isinstance(found, MetricPoint):
            chunk.points.append(found)
        elif isinstance(found, Alert):
            chunk.alerts.append(found)
        elif isinstance(found, PlanNote):
            chunk.plan = found.text
        elif found is not None:
            chunk.saves.append(found)
        elif line.strip():
            chunk.bad_lines += 1
    return chunk


def _read(line: bytes) -> MetricPoint | Alert | PlanNote | SaveNote | None:
    try:
        data: Any = json.loads(line)
        if "a" in data:
            kind, message = storable_text(str(data["a"]["kind"])), storable_text(str(data["a"]["message"]))
            return Alert(
                at=_time(data["t"]),
                step=_int(data.get("s")),
                kind=kind[:_LONGEST_KIND],
                message=message[:_LONGEST_TEXT],
                once=data["a"].get("once") is True,
            )
        if "p" in data:
            return PlanNote(text=storable_text(str(data["p"]))[:_LONGEST_TEXT])
        if "c" in data:
            return read_note(data["c"], at=_time(data["t"]), step=_int(data.get("s")))
        values = data["m"]
        if not _can_be_kept(tuple(values)):
            values = {
                name[:_LONGEST_NAME]: value for name, value in values.items() if _can_be_kept((name[:_LONGEST_NAME],))
            }
        values = {name: float(value) for name, value in values.items()}
        return MetricPoint(
            at=_time(data["t"]),
            step=_int(data.get("s")),
            values=values,
            total=_int(data.get("n")),
            of_board="o" in data,  # how far its file was read
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


@functools.lru_cache(maxsize=1_000)
def _can_be_kept(names: tuple[str, ...]) -> bool:
    """Programs log the same names again and again."""
    return all(0 < len(name) <= _LONGEST_NAME and storable_text(name) == name for name in names)


def _time(value: Any) -> float:
    at = float(value)
    if not 0 <= at < 1e11:
        raise ValueError(f"{at} is not a time: times are seconds since the epoch")
    return at


def _int(value: Any) -> int | None:
    if value is None:
        return None
    number = int(value)
    if not 0 <= number < 2**63:
        raise ValueError(f"{number} is not a step: steps go from 0 to 2**63")
    return number


def _pick(better: Any, old: float | None, new: float | None) -> float | None:
    if old is None or new is None:
        return new if old is None else old
    return float(better(old, new))
