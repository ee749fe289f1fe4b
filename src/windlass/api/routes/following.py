"""Routes that show what a run does: events, logs, metrics; as pages, or followed as server-sent events."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Response

from windlass.api.answers import json_of
from windlass.api.context import Context
from windlass.api.routes.runs import Ref
from windlass.api.streams import follow
from windlass.core.errors import InvalidInput
from windlass.runs.following import Channels
from windlass.runs.logs import LogQuery
from windlass.tracking.logpattern import LONGEST_PATTERN, LogPattern
from windlass.tracking.logs import LogFilter
from windlass.tracking.series import Window
from windlass.wire import runs as wire

router = APIRouter(prefix="/api/runs", tags=["following"])

Rank = Annotated[int | None, Query(ge=0, lt=1_000_000)]
Attempt = Annotated[int | None, Query(ge=1, lt=1_000_000)]
Stream = Annotated[Literal["stdout", "stderr"] | None, Query()]
Tail = Annotated[int | None, Query(ge=0, le=100_000, description="begin with about the last so many lines")]
Grep = Annotated[
    str | None,
    Query(min_length=1, max_length=LONGEST_PATTERN, pattern=r"^[^\x00]*$", description="a regular expression"),
]
Moment = Annotated[float | None, Query(ge=0, lt=1e11, description="seconds since the epoch")]
Step = Annotated[int | None, Query(gt=-(2**63), lt=2**63)]
System = Annotated[bool, Query(description="those of its machines too: system/...")]
LastEventId = Annotated[str | None, Header(max_length=100_000)]
_SSE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {}}, "description": "a page, or a stream with follow=true"}
}


@router.get("/{ref}/events", response_model=wire.EventPage, responses=_SSE)
def events(
    ref: Ref,
    services: Context,
    after: Annotated[int, Query(ge=0, lt=2**63)] = 0,
    follow_: Annotated[bool, Query(alias="follow")] = False,
    last_event_id: LastEventId = None,
) -> wire.EventPage | Response:
    if follow_:
        return follow(services, ref, Channels(events=True), last_event_id)
    return services.runs.events(ref, after=after)


@router.get("/{ref}/logs", response_model=wire.LogPage, responses=_SSE)
def logs(
    ref: Ref,
    services: Context,
    rank: Rank = None,
    attempt: Attempt = None,
    stream: Stream = None,
    tail: Tail = None,
    grep: Grep = None,
    ignore_case: bool = False,
    since: Moment = None,
    until: Moment = None,
    after: Annotated[str | None, Query(max_length=100_000)] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
    follow_: Annotated[bool, Query(alias="follow")] = False,
    last_event_id: LastEventId = None,
) -> wire.LogPage | Response:
    """Lines of all ranks by time: of some, of a time, or those that match."""
    if since is not None and until is not None and since > until:
        raise InvalidInput(f"`since` ({since:.15g}) is after `until` ({until:.15g})", hint="nothing lies between them")
    pattern = LogPattern.parse(grep, ignore_case=ignore_case) if grep is not None else None
    only = LogFilter(stream=stream, pattern=pattern, since=since, until=until)
    wanted = LogQuery(rank=rank, attempt=attempt, tail=tail, only=only)
    if follow_:
        return follow(services, ref, Channels(logs=wanted), last_event_id)
    return services.runs.logs(ref, wanted, after=after, limit=limit)


@router.get("/{ref}/stream", response_class=Response, responses=_SSE)
def stream(
    ref: Ref,
    services: Context,
    logs: bool = True,
    rank: Rank = None,
    tail: Tail = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Everything about a run in one stream: `run`, `event`, `log`, `progress`, and `end` at last."""
    channels = Channels(events=True, progress=True, logs=LogQuery(rank=rank, tail=tail) if logs else None)
    return follow(services, ref, channels, last_event_id)


@router.get("/{ref}/metrics")
def metrics(
    ref: Ref,
    services: Context,
    name: Annotated[list[str] | None, Query(max_length=1_000)] = None,
    most: Annotated[int, Query(ge=2, le=100_000, description="thin each series to about so many points")] = 10_000,
    first_step: Step = None,
    last_step: Step = None,
    since: Moment = None,
    until: Moment = None,
    system: System = False,
    limit: Annotated[
        int | None, Query(ge=1, le=100_000, description="so many metrics at most: losses first, then by name")
    ] = None,
) -> wire.MetricsView:
    """Points in the order of their steps: all of them, or the least and greatest of every stretch, and both ends."""
    window = _window(first_step, last_step, since, until)
    return services.runs.metrics(ref, names=name, most=most, window=window, system=system, limit=limit)


@router.get("/{ref}/metric-summaries", response_model=wire.MetricSummaries)
def metric_summaries(ref: Ref, services: Context, system: System = False) -> Response:
    """Latest value, least, greatest and number of points of every metric; of runs of MLflow's clients too."""
    return json_of(services.overview.metrics(ref, system=system))


@router.get("/{ref}/chart")
def chart(
    ref: Ref,
    services: Context,
    name: Annotated[str, Query(min_length=1, max_length=250)],
    most: Annotated[int, Query(ge=1, le=20_000, description="stretches at most")] = 1_000,
    first_step: Step = None,
    last_step: Step = None,
    since: Moment = None,
    until: Moment = None,
) -> wire.MetricChart:
    """Least, greatest and mean of a metric in stretches: as much as a chart draws, of however many points."""
    return services.runs.chart(ref, name, most=most, window=_window(first_step, last_step, since, until))


def _window(first_step: int | None, last_step: int | None, since: float | None, until: float | None) -> Window:
    def span(low: float | None, high: float | None) -> tuple[float, float] | None:
        if low is None and high is None:
            return None
        return -math.inf if low is None else low, math.inf if high is None else high

    return Window(steps=span(first_step, last_step), times=span(since, until))


@router.post("/{ref}/metrics", response_model=wire.MetricReceipt)
def ingest(ref: Ref, batch: wire.MetricBatch, services: Context) -> Response:
    """Add points. Each point of a source has a number; what is known already is skipped, so a repeat is harmless."""
    return json_of(services.runs.ingest(ref, batch))
