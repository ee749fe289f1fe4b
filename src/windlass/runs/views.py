"""Records as the API shows them."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from windlass.core.exits import Exit
from windlass.runs.records import AttemptRecord, RunHead, RunRecord
from windlass.runs.types import RunState
from windlass.tenancy.prices import PriceBook, Spent, hourly_usd, spent_on
from windlass.tracking.blocks import NO_STEP
from windlass.tracking.points import MetricPoint, ProgressMark, Summary
from windlass.tracking.rollups import Rollups
from windlass.wire import runs as wire
from windlass.wire.spec import Priority

_LARGEST = sys.float_info.max
_PRIORITY_NAMES = {priority.rank: priority.value for priority in Priority}


def priority_name(rank: int) -> str:
    return _PRIORITY_NAMES.get(rank, str(rank))


def summary_view(
    run: RunHead, live: AttemptRecord | None, progress: ProgressMark | None, prices: PriceBook, *, now: float
) -> wire.RunSummary:
    return wire.RunSummary(**_summary(run, live, progress, prices, now))


def run_view(
    run: RunRecord,
    attempts: Sequence[AttemptRecord],
    progress: ProgressMark | None,
    metrics: Mapping[str, Summary],
    prices: PriceBook,
    *,
    environment: Mapping[str, Any] | None,
    note: str | None,
    run_dir: str | None,
    now: float,
) -> wire.RunView:
    last = attempts[-1] if attempts else None
    live = last if last and last.ended_at is None else None
    return wire.RunView(
        **_summary(run, live, progress, prices, now),
        spec=run.spec,
        seed=run.seed,
        command=list(run.argv),
        code_digest=run.code_digest,
        origin=wire.Origin(**run.origin),
        clone_of=run.clone_of,
        note=note,
        metrics=metric_views(metrics),
        usage=_dict(last.usage) if last else None,
        environment=_dict(environment),
        run_dir=run_dir,
        exit_code=_shell_code(run),
    )


def metric_views(metrics: Mapping[str, Summary]) -> dict[str, wire.MetricSummary]:
    return {
        name: wire.MetricSummary(last=_or_nan(m.last), step=m.last_step, min=m.min, max=m.max, count=m.count)
        for name, m in metrics.items()
    }


def attempt_view(attempt: AttemptRecord, environment: Mapping[str, Any] | None) -> wire.AttemptView:
    return wire.AttemptView(
        id=attempt.id,
        number=attempt.number,
        state=attempt.state,
        engine=attempt.engine,
        nodes=[share.node for share in attempt.placement.shares],
        created_at=attempt.created_at,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        exit=exit_view(attempt.exit),
        log_dirs=list(attempt.log_dirs),
        environment=_dict(environment),
        usage=_dict(attempt.usage),
        detail=attempt.detail,
        unknown_since=attempt.unknown_since,
    )


def exit_view(exit: Exit | None) -> wire.ExitView | None:
    if exit is None:
        return None
    return wire.ExitView(
        reason=exit.reason,
        exit_code=exit.exit_code,
        signal=exit.signal,
        rank=exit.rank,
        message=exit.message,
        traceback=exit.traceback,
        trouble=exit.trouble,
        node=exit.node,
    )


def progress_view(mark: ProgressMark | None) -> wire.Progress | None:
    return None if mark is None else wire.Progress(step=mark.step, total=mark.total, eta_s=mark.eta_s())


def event_view(row: Any) -> wire.EventView:
    return wire.EventView(
        seq=row.seq, at=row.at, kind=row.kind, attempt=row.attempt, message=row.message, data=row.data
    )


def series_view(name: str, rows: Sequence[Any]) -> wire.MetricSeries:
    return wire.MetricSeries(
        name=name,
        steps=[row.step for row in rows],
        values=[_or_nan(row.value) for row in rows],
        at=[row.at for row in rows],
    )


def chart_view(name: str, found: Rollups) -> wire.MetricChart:
    means = [total / count if count else None for total, count in zip(found.sums, found.numbers, strict=True)]
    return wire.MetricChart(
        name=name,
        points=list(found.points),
        first_steps=[None if step == NO_STEP else step for step in found.first_steps],
        last_steps=[None if step == NO_STEP else step for step in found.last_steps],
        first_at=list(found.first_ats),
        last_at=list(found.last_ats),
        min=[value if count else None for value, count in zip(found.mins, found.numbers, strict=True)],
        max=[value if count else None for value, count in zip(found.maxs, found.numbers, strict=True)],
        mean=means,
    )


def point_of(point: wire.Point) -> MetricPoint:
    return MetricPoint(at=point.at, step=point.step, values=point.values, total=point.total)


def _or_nan(value: float | None) -> float:
    """Tables keep NaN as null: SQLite has no other."""
    return math.nan if value is None else value


def finite(value: float | None) -> float | None:
    """For the stream of a run, whose readers draw what they get: the largest number stands for infinities, and NaN is
    null."""
    return None if value is None or value != value else max(-_LARGEST, min(_LARGEST, value))


def _summary(
    run: RunHead, live: AttemptRecord | None, progress: ProgressMark | None, prices: PriceBook, now: float
) -> dict[str, Any]:
    spent = Spent(cpu_hours=run.cpu_hours, gpu_hours=run.gpu_hours, usd=run.cost_usd)
    if live and live.started_at is not None:
        usd_per_hour = live.usd_per_hour
        if usd_per_hour is None:  # placed by a server of the version before
            usd_per_hour = hourly_usd(live.placement, run.resources.gpu_type, prices)
        spent += spent_on(live.placement, usd_per_hour, now - live.started_at)
    duration_s = (run.ended_at or now) - run.started_at if run.started_at is not None else None
    return {
        "id": run.id,
        "name": run.name,
        "project": run.project,
        "user": run.user,
        "state": run.state,
        "cancelling": run.cancelling,
        "priority": priority_name(run.priority),
        "tags": dict(run.tags),
        "submitted_at": run.submitted_at,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "duration_s": None if duration_s is None else max(0.0, duration_s),
        "attempts": run.attempt_count,
        "preemptions": run.preemptions,
        "retry_at": run.retry_at if run.state is RunState.RECOVERING else None,
        "unknown_since": live.unknown_since if live and run.state.is_live else None,
        "exit": exit_view(run.exit),
        "progress": None if run.state is RunState.QUEUED else progress_view(progress),
        "cost": wire.Cost(cpu_hours=spent.cpu_hours, gpu_hours=spent.gpu_hours, usd=spent.usd),
    }


def _shell_code(run: RunHead) -> int | None:
    if not run.state.is_terminal:
        return None
    if run.state is RunState.CANCELLED:
        return 130
    return run.exit.shell_code if run.exit else 1


def _dict(data: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if data is None else dict(data)
