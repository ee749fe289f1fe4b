"""What spans make of their trace: times, state, tokens, cost, previews, tags."""

from __future__ import annotations

import json
from typing import Any

from windlass.traces.arrivals import Known, decide_changes, first_columns, gather
from windlass.traces.conventions import preview, translate
from windlass.traces.spans import SPAN_TYPE, USAGE, Span, dump
from windlass.traces.totals import said_of, total_tokens
from windlass.traces.types import FINALIZED, SPANS_LOCATION, TOKEN_USAGE, TRACE_SESSION, StoredSpan

MS = 1_000_000


def span(id: int, *, parent: int | None = None, start: int = 1, end: int | None = 2, **more: Any) -> Span:
    attributes = {key.replace("__", "."): dump(value) for key, value in more.pop("attributes", {}).items()}
    return Span(
        trace_id=b"\7" * 16,
        span_id=id.to_bytes(8, "big"),
        parent_id=parent.to_bytes(8, "big") if parent else None,
        name=f"span-{id}",
        kind="SPAN_KIND_INTERNAL",
        start_ns=start * MS,
        end_ns=end * MS if end is not None else None,
        status=more.pop("status", "STATUS_CODE_OK"),
        message="",
        attributes=attributes,
        **more,
    )


def known(**more: Any) -> Known:
    fresh: dict[str, Any] = {
        "request_ms": 5,
        "duration_ms": 5,
        "state": "IN_PROGRESS",
        "request_preview": None,
        "response_preview": None,
        "metadata": {},
    }
    return Known(**{**fresh, **more})


def test_a_first_batch_makes_the_trace() -> None:
    [batch] = gather([span(2, parent=1, start=3, end=9), span(1, start=2, end=8)])
    assert first_columns(batch, 4) == {
        "id": f"tr-{'07' * 16}",
        "experiment_id": 4,
        "request_ms": 2,
        "duration_ms": 7,
        "state": "OK",
    }


def test_without_its_root_a_trace_is_in_progress() -> None:
    [batch] = gather([span(2, parent=1, end=None)])
    columns = first_columns(batch, 0)
    assert (columns["state"], columns["duration_ms"]) == ("IN_PROGRESS", None)


def test_later_spans_widen_the_time_and_end_the_trace() -> None:
    [batch] = gather([span(1, start=3, end=12, status="STATUS_CODE_ERROR")])
    assert decide_changes(batch, known()).columns == {"request_ms": 3, "duration_ms": 9, "state": "ERROR"}


def test_what_the_client_has_finalized_stays() -> None:
    [batch] = gather([span(1, start=3, end=12, attributes={USAGE: {"input_tokens": 9}, "session.id": "s"})])
    told = known(state="OK", metadata={FINALIZED: "true", TOKEN_USAGE: "{}"})
    changes = decide_changes(batch, told)
    assert (changes.columns, changes.metadata) == ({}, {})
    assert changes.tags == {SPANS_LOCATION: "TRACKING_STORE"}


def test_a_session_comes_with_a_span() -> None:
    [batch] = gather([span(1, attributes={"session.id": "s-1"})])
    assert decide_changes(batch, known()).metadata == {TRACE_SESSION: "s-1"}


def test_tokens_of_a_parent_that_sums_up_are_not_counted_twice() -> None:
    usage = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    sums = [said_of("1", None, None), said_of("2", "1", usage), said_of("3", "2", usage), said_of("4", "1", usage)]
    assert total_tokens(sums) == {"input_tokens": 6, "output_tokens": 8, "total_tokens": 14}
    assert total_tokens([said_of("1", None, None)]) is None


def test_tokens_are_summed_over_spans_that_came_before_and_repeats_count_once() -> None:
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    content = json.dumps({"attributes": {USAGE: json.dumps(usage)}})
    before = [StoredSpan(id=f"{id:016x}", parent_id=None, start_ns=0, content=content) for id in (1, 5)]
    [batch] = gather([span(1, attributes={USAGE: usage})])
    changes = decide_changes(batch, known(spans=before))
    assert json.loads(changes.metadata[TOKEN_USAGE])["total_tokens"] == 4


def test_tags_of_the_root_win_over_those_of_the_resource_and_ours_are_not_theirs_to_set() -> None:
    attributes = {"mlflow.traceTag.env": "prod", "mlflow.traceTag.mlflow.artifactLocation": "evil"}
    resource = {"env": "dev", "service.name": "shop", "telemetry.sdk.name": "x", "mlflow.x": "y", "n": 3}
    [batch] = gather([span(1, attributes=attributes, resource=resource)])
    assert batch.tags == {"env": "prod", "service.name": "shop", "n": "3"}


def test_words_of_others_are_translated_and_mlflows_own_stay() -> None:
    said = {
        "gen_ai.operation.name": "chat",
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": "4",
        "gen_ai.request.model": "m-1",
        "gen_ai.provider.name": "someone",
    }
    found = translate(span(1, attributes=said))
    assert found.attribute(SPAN_TYPE) == "CHAT_MODEL"
    assert found.attribute(USAGE) == {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    assert (found.attribute("mlflow.llm.model"), found.attribute("mlflow.llm.provider")) == ("m-1", "someone")
    mine = translate(span(1, attributes={**said, SPAN_TYPE: "TOOL"}))
    assert mine.attribute(SPAN_TYPE) == "TOOL"


def test_a_preview_is_the_last_message_of_the_role() -> None:
    chat = {"messages": [{"role": "user", "content": "first"}, {"role": "user", "content": "last"}]}
    assert preview(json.dumps(chat), role="user") == "last"
    assert preview("x" * 2000, role="user") == "x" * 997 + "..."
    assert preview('{"a": 1}', role="user") == '{"a": 1}'
    assert preview(None, role="user") is None
