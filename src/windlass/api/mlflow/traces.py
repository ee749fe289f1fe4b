"""Calls of traces: those of MLflow 3, and the older ones that some clients still use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Response

from windlass.api.context import Services
from windlass.api.mlflow.calls import Calls
from windlass.api.mlflow.errors import MlflowError
from windlass.api.mlflow.fields import (
    Asked,
    anything,
    at_most,
    items,
    number,
    read_fields,
    text,
    texts,
    thing,
    whole,
    words,
    yes_or_no,
)
from windlass.api.mlflow.traceforms import (
    PROTECTED_TAGS,
    REMOVABLE_TAGS,
    enum,
    location_of,
    read_trace,
    render_old_trace,
    render_span,
    render_trace,
)
from windlass.core.errors import InvalidInput
from windlass.traces.metrics import VIEWS, Aggregation, Question
from windlass.traces.service import WholeTrace
from windlass.traces.store import experiment_number

calls = Calls()

_STATES = ("TRACE_STATUS_UNSPECIFIED", "OK", "ERROR", "IN_PROGRESS")
_AGGREGATIONS = ("", "COUNT", "SUM", "AVG", "PERCENTILE", "MIN", "MAX")


# Those with a fixed path come before those with the id of a trace in the same place.


@calls.get("/mlflow/traces/get", 3, trace_id=text(required=True), allow_partial=yes_or_no())
def get_whole(services: Services, asked: Asked) -> Mapping[str, Any]:
    return {"trace": _whole(services.traces.whole(asked["trace_id"], partial=asked["allow_partial"]))}


@calls.get("/mlflow/traces/batchGet", 3, trace_ids=texts(required=True))
def batch_get(services: Services, asked: Asked) -> Mapping[str, Any]:
    return {"traces": [_whole(found) for found in services.traces.whole_ones(asked["trace_ids"])]}


@calls.get("/mlflow/traces/batchGetInfos", 3, trace_ids=texts(required=True))
@calls.post("/mlflow/traces/batchGetInfos", 3, trace_ids=texts(required=True))
def batch_get_infos(services: Services, asked: Asked) -> Mapping[str, Any]:
    return {"trace_infos": [render_trace(trace) for trace in services.traces.infos(asked["trace_ids"])]}


@calls.post(
    "/mlflow/traces/search",
    3,
    locations=items(required=True),
    filter=text(),
    max_results=whole(at_most(500), empty=100),
    order_by=texts(),
    page_token=text(),
)
def search(services: Services, asked: Asked) -> Mapping[str, Any]:
    named = [experiment for given in asked["locations"] if (experiment := location_of(given)) is not None]
    return _page(services, asked, named, old=False)


@calls.post(
    "/mlflow/traces/calculate-filter-correlation",
    3,
    experiment_ids=texts(required=True),
    filter_string1=text(required=True),
    filter_string2=text(required=True),
    base_filter=text(),
)
def correlate(services: Services, asked: Asked) -> Mapping[str, Any]:
    found = services.traces.correlation(
        asked["experiment_ids"], asked["filter_string1"], asked["filter_string2"], asked.or_none("base_filter")
    )
    return {
        "npmi": _number(found.npmi),
        "npmi_smoothed": _number(found.smoothed),
        "filter1_count": found.counts.first,
        "filter2_count": found.counts.second,
        "joint_count": found.counts.both,
        "total_count": found.counts.total,
    }


@calls.post(
    "/mlflow/traces/metrics",
    3,
    experiment_ids=texts(required=True),
    view_type=anything(required=True),
    metric_name=text(required=True),
    aggregations=items(required=True),
    dimensions=texts(),
    filters=texts(),
    time_interval_seconds=whole(),
    start_time_ms=whole(),
    end_time_ms=whole(),
    max_results=whole(empty=1000),
    page_token=text(),
)
def figures(services: Services, asked: Asked) -> Mapping[str, Any]:
    question = Question(
        experiment_ids=[experiment_number(id) for id in asked["experiment_ids"]],
        view=enum("view_type", asked["view_type"], ("", *VIEWS)),
        metric=asked["metric_name"],
        aggregations=[_aggregation(one) for one in asked["aggregations"]],
        dimensions=asked["dimensions"],
        filters=asked["filters"],
        interval_s=asked.or_none("time_interval_seconds"),
        from_ms=asked.or_none("start_time_ms"),
        until_ms=asked.or_none("end_time_ms"),
        most=asked["max_results"],
    )
    return {
        "data_points": [
            {"metric_name": question.metric, "dimensions": dict(one.dimensions), "values": dict(one.values)}
            for one in services.traces.figures(question)
        ]
    }


def _aggregation(given: Any) -> Aggregation:
    asked = read_fields({"aggregation_type": anything(), "percentile_value": number()}, given)
    kind = enum("aggregation_type", asked["aggregation_type"], _AGGREGATIONS)
    return Aggregation(kind=kind, percentile=asked.or_none("percentile_value"))


@calls.post("/mlflow/traces/link-to-run", run_id=text(required=True), trace_ids=texts(required=True))
@calls.post("/mlflow/traces/link-to-run", 3, run_id=text(required=True), trace_ids=texts(required=True))
def link_to_run(services: Services, asked: Asked) -> None:
    services.traces.link_to_run(asked["trace_ids"], asked["run_id"])


@calls.post("/mlflow/traces/link-prompts", trace_id=text(required=True), prompt_versions=items(required=True))
@calls.post("/mlflow/traces/link-prompts", 3, trace_id=text(required=True), prompt_versions=items(required=True))
def link_prompts(services: Services, asked: Asked) -> None:
    read = [
        read_fields({"name": text(required=True), "version": text(required=True)}, one)
        for one in asked["prompt_versions"]
    ]
    services.traces.link_prompts(asked["trace_id"], [(one["name"], one["version"]) for one in read])


_DOOMED = {
    "experiment_id": text(required=True),
    "max_timestamp_millis": whole(),
    "max_traces": whole(),
    "request_ids": texts(),
}


@calls.post("/mlflow/traces/delete-traces", **_DOOMED)
@calls.post("/mlflow/traces/delete-traces", 3, **_DOOMED)
def delete(services: Services, asked: Asked) -> Mapping[str, Any]:
    count = services.traces.delete(
        asked["experiment_id"],
        until_ms=asked.or_none("max_timestamp_millis"),
        at_most=asked.or_none("max_traces"),
        trace_ids=asked["request_ids"],
    )
    return {"traces_deleted": count}


@calls.post("/mlflow/traces", 3, trace=thing(required=True))
def start(services: Services, asked: Asked) -> Mapping[str, Any]:
    trace, experiment_id = read_trace(asked["trace"].get("trace_info") or asked["trace"].get("traceInfo") or {})
    return {"trace": {"trace_info": render_trace(services.traces.start(trace, experiment_id=experiment_id))}}


@calls.get("/mlflow/traces/{trace_id}", 3, trace_id=text(required=True))
def get(services: Services, asked: Asked) -> Mapping[str, Any]:
    return {"trace": {"trace_info": render_trace(services.traces.get(asked["trace_id"]))}}


@calls.patch("/mlflow/traces/{trace_id}/tags", trace_id=text(), key=text(required=True), value=words())
@calls.patch("/mlflow/traces/{trace_id}/tags", 3, trace_id=text(), key=text(required=True), value=words())
def set_tag(services: Services, asked: Asked) -> None:
    _check_tag(asked["key"], "set")
    services.traces.set_tag(asked["trace_id"], asked["key"], asked["value"])


@calls.delete("/mlflow/traces/{trace_id}/tags", trace_id=text(), key=text(required=True))
@calls.delete("/mlflow/traces/{trace_id}/tags", 3, trace_id=text(), key=text(required=True))
def delete_tag(services: Services, asked: Asked) -> None:
    _check_tag(asked["key"], "deleted")
    services.traces.delete_tag(asked["trace_id"], asked["key"])


def _check_tag(key: str, what: str) -> None:
    if key in PROTECTED_TAGS and not (what == "deleted" and key in REMOVABLE_TAGS):
        raise InvalidInput(f"Tag '{key}' is immutable and cannot be {what} on a trace.")


# As clients before MLflow 3 ask.


@calls.post("/mlflow/traces", experiment_id=text(), timestamp_ms=whole(), request_metadata=items(), tags=items())
def begin(services: Services, asked: Asked) -> Mapping[str, Any]:
    trace = services.traces.begin(
        experiment_id=asked["experiment_id"],
        request_ms=asked["timestamp_ms"],
        metadata=_pairs(asked["request_metadata"]),
        labels=_pairs(asked["tags"]),
    )
    return {"trace_info": render_old_trace(trace)}


@calls.get(
    "/mlflow/traces",
    experiment_ids=texts(required=True),
    filter=text(),
    max_results=whole(at_most(500), empty=100),
    order_by=texts(),
    page_token=text(),
)
def search_old(services: Services, asked: Asked) -> Mapping[str, Any]:
    return _page(services, asked, asked["experiment_ids"], old=True)


@calls.patch(
    "/mlflow/traces/{request_id}",
    request_id=text(),
    timestamp_ms=whole(),
    status=anything(),
    request_metadata=items(),
    tags=items(),
)
def finish(services: Services, asked: Asked) -> Mapping[str, Any]:
    state = enum("status", asked["status"], _STATES) if "status" in asked.given else _STATES[0]
    labels = {key: value for key, value in _pairs(asked["tags"]).items() if key not in PROTECTED_TAGS}
    trace = services.traces.finish(
        asked["request_id"],
        end_ms=asked["timestamp_ms"],
        state="STATE_UNSPECIFIED" if state == _STATES[0] else state,
        metadata=_pairs(asked["request_metadata"]),
        labels=labels,
    )
    return {"trace_info": render_old_trace(trace)}


@calls.get("/mlflow/traces/{request_id}/info", request_id=text())
def get_old(services: Services, asked: Asked) -> Mapping[str, Any]:
    return {"trace_info": render_old_trace(services.traces.get(asked["request_id"]))}


@calls.get("/mlflow/get-trace-artifact", request_id=text(), path=text())
@calls.get("/mlflow/get-trace-artifact", 3, request_id=text(), path=text())
def get_artifact(services: Services, asked: Asked) -> Response:
    if not asked["request_id"]:
        raise MlflowError("BAD_REQUEST", 'Request must include the "request_id" query parameter.')
    found = services.traces.whole(asked["request_id"], partial=True)
    body = '{"spans":[' + ",".join(span.content for span in found.spans) + "]}"
    headers = {"Content-Disposition": "attachment; filename=traces.json", "X-Content-Type-Options": "nosniff"}
    return Response(body.encode(), media_type="application/octet-stream", headers=headers)


def _page(services: Services, asked: Asked, experiment_ids: list[str], *, old: bool) -> Mapping[str, Any]:
    found, token = services.traces.search(
        experiment_ids,
        filter=asked["filter"],
        order_by=asked["order_by"],
        limit=asked["max_results"],
        token=asked["page_token"],
    )
    render = render_old_trace if old else render_trace
    return {"traces": [render(trace) for trace in found], **({"next_page_token": token} if token else {})}


def _whole(found: WholeTrace) -> dict[str, Any]:
    return {"trace_info": render_trace(found.trace), "spans": [render_span(span) for span in found.spans]}


def _pairs(given: list[Any]) -> dict[str, str]:
    read = [read_fields({"key": text(required=True), "value": words()}, one) for one in given]
    return {one["key"]: one["value"] for one in read}


def _number(value: float) -> float | str:
    return json.dumps(value) if value != value else value
