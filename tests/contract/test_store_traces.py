"""Traces on both databases: whatever comes first, searches, deletion, assessments, figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import insert

from windlass.core.errors import AlreadyExists, InvalidInput, NotFound
from windlass.db.database import Database
from windlass.experiments.catalogue import put_default
from windlass.experiments.tables import tracked_runs
from windlass.testing.clock import FakeClock
from windlass.traces.metrics import Aggregation, Question
from windlass.traces.service import Revision, TraceService
from windlass.traces.spans import Span, dump
from windlass.traces.types import Assessment, Trace

HEX = "tr-" + "07" * 16


@pytest.fixture
def traces(database: Database, clock: FakeClock) -> TraceService:
    with database.write() as tx:
        put_default(tx, now_ms=0)
    return TraceService(db=database, clock=clock, patience_s=0)


def start(traces: TraceService, id: str, at: int = 0, **more: Any) -> Trace:
    fresh: dict[str, Any] = {"duration_ms": 1, "state": "OK"}
    trace = Trace(id=id, experiment_id=0, request_ms=at, **{**fresh, **more})
    return traces.start(trace, experiment_id="0")


def span(id: int = 1, *, parent: int | None = None, name: str = "root", **attributes: Any) -> Span:
    return Span(
        trace_id=b"\7" * 16,
        span_id=id.to_bytes(8, "big"),
        parent_id=parent.to_bytes(8, "big") if parent else None,
        name=name,
        kind="SPAN_KIND_INTERNAL",
        start_ns=1_000_000_000,
        end_ns=3_000_000_000,
        status="STATUS_CODE_OK",
        message="",
        attributes={key: dump(value) for key, value in attributes.items()},
    )


def found(traces: TraceService, filter: str | None = None, **more: Any) -> list[str]:
    return [trace.id for trace in traces.search(["0"], filter=filter, **more)[0]]


def feedback(trace_id: str, value: Any, name: str = "quality", **more: Any) -> Assessment:
    fresh = Assessment(
        id="",
        trace_id=trace_id,
        name=name,
        kind="feedback",
        value=value,
        error=None,
        created_ms=0,
        updated_ms=0,
        source_type="HUMAN",
        source_id="somebody",
        run_id=None,
        span_id=None,
        rationale=None,
        overrides=None,
        valid=True,
        metadata=None,
    )
    return replace(fresh, **more)


@pytest.mark.parametrize("spans_first", [True, False])
def test_spans_and_their_trace_come_in_any_order(traces: TraceService, spans_first: bool) -> None:
    def tell() -> None:
        start(traces, HEX, at=900, duration_ms=77, tags={"k": "v"}, metadata={"m": "n"})

    if not spans_first:
        tell()
    traces.log_spans("0", [span(2, parent=1, name="child"), span(1)])
    if spans_first:
        tell()
    whole = traces.whole(HEX, partial=False)
    assert (whole.trace.request_ms, whole.trace.duration_ms, whole.trace.state) == (900, 77, "OK")
    assert whole.trace.tags["k"] == "v"
    assert whole.trace.tags["mlflow.trace.spansLocation"] == "TRACKING_STORE"
    assert whole.trace.tags["mlflow.artifactLocation"].endswith(f"/traces/{HEX}/artifacts")
    assert [one.parent_id is None for one in whole.spans] == [True, False]


def test_spans_alone_make_a_trace(traces: TraceService) -> None:
    usage = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    traces.log_spans("0", [span(1, **{"mlflow.chat.tokenUsage": usage, "mlflow.spanInputs": "hello"})])
    trace = traces.get(HEX)
    assert (trace.request_ms, trace.duration_ms, trace.state) == (1000, 2000, "OK")
    assert trace.request_preview == '"hello"'
    assert "mlflow.trace.tokenUsage" in trace.metadata


def test_a_span_that_comes_twice_is_there_once(traces: TraceService) -> None:
    traces.log_spans("0", [span(1)])
    traces.log_spans("0", [span(1, name="again")])
    assert len(traces.whole(HEX, partial=True).spans) == 1
    assert found(traces, "span.name = 'again'") == [HEX]


def test_a_trace_that_lacks_spans_is_not_complete(traces: TraceService) -> None:
    start(traces, HEX, metadata={"mlflow.trace.sizeStats": '{"num_spans": 2}'})
    traces.log_spans("0", [span(1)])
    with pytest.raises(NotFound, match="not fully exported"):
        traces.whole(HEX, partial=False)
    assert traces.whole_ones([HEX]) == []
    traces.log_spans("0", [span(2, parent=1)])
    assert len(traces.whole_ones([HEX])) == 1


def test_an_experiment_that_is_not_there_is_named(traces: TraceService) -> None:
    with pytest.raises(NotFound, match="No Experiment with id=77 exists"):
        traces.log_spans("77", [span(1)])
    with pytest.raises(InvalidInput, match="abc"):
        traces.search(["abc"])


def test_searches_by_everything(traces: TraceService) -> None:
    start(traces, "a", 1, state="ERROR", tags={"mlflow.traceName": "Alpha", "env": "prod"}, client_request_id="c-1")
    start(traces, "b", 2, duration_ms=50, tags={"mlflow.traceName": "beta"}, metadata={"user": "Ann"})
    start(traces, "c", 3, duration_ms=None, metadata={"user": "Bob"})
    traces.log_spans("0", [span(1, name="call", model="gpt-4")])
    for filter, ids in {
        "name = 'Alpha'": ["a"],
        "name LIKE 'a%'": [],
        "name ILIKE 'a%'": ["a"],
        "name RLIKE 'ta$'": ["b"],
        "status = 'ERROR' AND tags.env = 'prod'": ["a"],
        "tags.env IS NULL AND metadata.user != 'Ann'": ["c"],
        "execution_time > 10": [HEX, "b"],
        "end_time = 52": ["b"],
        "client_request_id IN ('c-1', 'c-2')": ["a"],
        "span.name = 'call' AND span.status = 'OK'": [HEX],
        "span.attributes.model LIKE '%gpt-4%'": [HEX],
        "span.attributes.model RLIKE '^gpt-[0-9]$'": [HEX],
        "span.attributes.model RLIKE '^pt'": [],
        "trace.text LIKE '%gpt%'": [HEX],
        "trace.text LIKE '%GPT%'": [],
    }.items():
        assert found(traces, filter) == ids, filter


@pytest.mark.timeout(30)
def test_no_pattern_stops_everybody(traces: TraceService) -> None:
    start(traces, "a", 1, tags={"a": "a" * 60 + "!"})
    traces.log_spans("0", [span(1, text="a" * 60 + "!")])
    for pattern in ("^(a+)+$", "^(a{1,20}){1,20}$", "(a|aa)+$"):
        assert found(traces, f"tag.a RLIKE '{pattern}'") == []
    assert found(traces, "span.attributes.text RLIKE '^(a+)+$'") == []
    assert found(traces, "tag.a RLIKE '^(a+)+!$'") == ["a"]
    for wrong in (
        "tag.a RLIKE '(?<x'",
        "span.attributes.`(` RLIKE '^('",
        "tag.a RLIKE '(a)\\1'",
    ):
        with pytest.raises(InvalidInput):
            found(traces, wrong)


def test_searches_are_ordered_and_come_in_pages(traces: TraceService) -> None:
    for number, fruit in enumerate(["pear", None, "Apple", "fig"]):
        start(traces, f"t{number}", number, tags={"fruit": fruit} if fruit else {})
    assert found(traces) == ["t3", "t2", "t1", "t0"]
    assert found(traces, order_by=["tags.fruit"]) == ["t2", "t3", "t0", "t1"]
    assert found(traces, order_by=["tags.fruit DESC"]) == ["t0", "t3", "t2", "t1"]
    page, token = traces.search(["0"], limit=3)
    assert token is not None
    rest, end = traces.search(["0"], limit=3, token=token)
    assert ([one.id for one in [*page, *rest]], end) == (["t3", "t2", "t1", "t0"], None)


def test_times_that_cannot_be_shown_are_refused(traces: TraceService) -> None:
    for at in (2**62, -(2**62)):
        with pytest.raises(InvalidInput, match="year"):
            traces.begin(experiment_id="0", request_ms=at, metadata={}, labels={})
    begun = traces.begin(experiment_id="0", request_ms=1, metadata={}, labels={})
    with pytest.raises(InvalidInput, match="year"):
        traces.finish(begun.id, end_ms=2**62, state="OK", metadata={}, labels={})


def test_spans_of_a_run_come_with_their_links_or_not_at_all(traces: TraceService, database: Database) -> None:
    many = [replace(span(1), trace_id=number.to_bytes(16, "big")) for number in range(1, 151)]
    with pytest.raises(NotFound, match="Run with id=r1 not found"):
        traces.log_spans("0", many, run_id="r1")
    assert found(traces) == []
    put_run(database, "r1")
    traces.log_spans("0", many, run_id="r1")
    assert len(found(traces, "run_id = 'r1'", limit=500)) == 150


def put_run(database: Database, id: str) -> None:
    with database.write() as tx:
        row = {"id": id, "experiment_id": 0, "name": "n", "user": "u", "status": "RUNNING", "stage": "active"}
        tx.execute(insert(tracked_runs).values(**row, artifact_uri="x"))


def test_traces_of_a_run_are_those_it_made_and_those_linked_to_it(traces: TraceService, database: Database) -> None:
    put_run(database, "r1")
    start(traces, "a", 1, metadata={"mlflow.sourceRun": "r1"})
    start(traces, "b", 2)
    start(traces, "c", 3)
    traces.link_to_run(["b", "not there yet"], "r1")
    traces.link_to_run(["b"], "r1")
    assert found(traces, "run_id = 'r1'") == ["b", "a"]
    with pytest.raises(NotFound, match="nobody"):
        traces.link_to_run(["a"], "nobody")
    with pytest.raises(InvalidInput, match="more than 100"):
        traces.link_to_run(["a"] * 101, "r1")


def test_traces_of_a_prompt(traces: TraceService) -> None:
    start(traces, "a")
    traces.link_prompts("a", [("p", "1"), ("p", "1")])
    assert found(traces, "prompt = 'p/1'") == ["a"]
    assert found(traces, "prompt = 'p/2'") == []


def test_deleting_takes_the_oldest_first_and_all_that_belongs_to_them(traces: TraceService) -> None:
    for number in range(4):
        start(traces, f"t{number}", number, tags={"k": "v"})
    traces.create_assessment(feedback("t0", 1))
    assert traces.delete("0", until_ms=2, at_most=2, trace_ids=[]) == 2
    assert traces.delete("0", until_ms=None, at_most=None, trace_ids=["t3", "nobody"]) == 1
    assert found(traces) == ["t2"]
    with pytest.raises(NotFound):
        traces.get_assessment("t0", "any")
    with pytest.raises(InvalidInput, match="Either `max_timestamp_millis`"):
        traces.delete("0", until_ms=None, at_most=None, trace_ids=[])


def test_tags_are_set_and_removed(traces: TraceService) -> None:
    start(traces, "a")
    traces.set_tag("a", "k", "v" * 9000)
    assert len(traces.get("a").tags["k"]) == 8000
    traces.delete_tag("a", "k")
    with pytest.raises(NotFound, match="No trace tag with key 'k'"):
        traces.delete_tag("a", "k")
    with pytest.raises(InvalidInput, match="for parameter 'key'"):
        traces.set_tag("a", "bad?key", "v")


def test_feedback_is_searched_by_its_value(traces: TraceService) -> None:
    for id, value in {"a": 5, "b": "yes", "c": True, "d": 2.5}.items():
        start(traces, id)
        traces.create_assessment(feedback(id, value))
    assert found(traces, "feedback.quality = 'yes'") == ["b"]
    assert found(traces, "feedback.quality = 'true'") == ["c"]
    assert found(traces, "feedback.quality > 2") == ["a", "d"]
    assert found(traces, "feedback.quality IS NULL") == []
    assert found(traces, "feedback.quality != 'yes'") == ["a", "c", "d"]


def test_an_assessment_of_a_session_holds_for_all_its_traces(traces: TraceService) -> None:
    for id in ("a", "b"):
        start(traces, id, metadata={"mlflow.trace.session": "s"})
    start(traces, "c")
    traces.create_assessment(feedback("a", "good", metadata={"mlflow.trace.session": "s"}))
    assert found(traces, "feedback.quality = 'good'") == ["a", "b"]
    assert found(traces, "feedback.quality IS NULL") == ["c"]


def test_an_assessment_that_overrides_makes_the_other_invalid_until_it_goes(traces: TraceService) -> None:
    start(traces, "a")
    first = traces.create_assessment(feedback("a", "no"))
    second = traces.create_assessment(feedback("a", "yes", overrides=first.id))
    assert not traces.get_assessment("a", first.id).valid
    assert found(traces, "feedback.quality = 'no'") == []
    traces.delete_assessment("a", second.id)
    assert traces.get_assessment("a", first.id).valid
    with pytest.raises(NotFound, match="Assessment with ID 'x' not found"):
        traces.create_assessment(feedback("a", "yes", overrides="x"))


def test_assessments_change_and_keep_their_kind(traces: TraceService, clock: FakeClock) -> None:
    start(traces, "a")
    one = traces.create_assessment(feedback("a", "no", metadata={"k": "v"}))
    clock.advance(5)
    changed = traces.update_assessment(
        "a", one.id, Revision(kind="feedback", value="yes", rationale="because", metadata={"l": "w"})
    )
    assert traces.get_assessment("a", one.id) == changed
    assert (changed.value, changed.metadata, changed.rationale) == ("yes", {"k": "v", "l": "w"}, "because")
    assert changed.updated_ms > one.updated_ms
    with pytest.raises(InvalidInput, match="Cannot update expectation value on a Feedback"):
        traces.update_assessment("a", one.id, Revision(kind="expectation", value=1))
    with pytest.raises(AlreadyExists, match="constraint violation"):
        traces.create_assessment(feedback("a", "no", id=one.id))


def test_how_filters_go_together(traces: TraceService) -> None:
    for number in range(10):
        start(traces, f"t{number}", tags={"env": "prod" if number < 6 else "dev", "kind": "a" if number < 7 else "b"})
    counts = traces.correlation(["0"], "tags.env = 'prod'", "tags.kind = 'a'", None).counts
    assert (counts.total, counts.first, counts.second, counts.both) == (10, 6, 7, 6)
    narrowed = traces.correlation(["0"], "tags.env = 'prod'", "tags.kind = 'a'", "tags.kind = 'b'").counts
    assert (narrowed.total, narrowed.first, narrowed.second, narrowed.both) == (3, 0, 0, 0)


def figures(traces: TraceService, view: str, metric: str, *kinds: str, **more: Any) -> list[tuple[Any, Any]]:
    wanted = [
        Aggregation(kind="PERCENTILE", percentile=50.0) if kind == "P50" else Aggregation(kind=kind) for kind in kinds
    ]
    question = Question(experiment_ids=[0], view=view, metric=metric, aggregations=wanted, **more)
    return [(dict(one.dimensions), dict(one.values)) for one in traces.figures(question)]


def test_figures_of_traces(traces: TraceService) -> None:
    for number, (state, name) in enumerate([("OK", "x"), ("OK", "y"), ("ERROR", "x")]):
        usage = {
            "mlflow.trace.tokenUsage": f'{{"input_tokens": {number + 1}}}',
            "mlflow.trace.session": f"s{number % 2}",
        }
        tags = {"mlflow.traceName": name}
        start(traces, f"t{number}", number * 1000, duration_ms=number * 10, state=state, tags=tags, metadata=usage)
    assert figures(traces, "TRACES", "trace_count", "COUNT", dimensions=["trace_status"]) == [
        ({"trace_status": "ERROR"}, {"COUNT": 1}),
        ({"trace_status": "OK"}, {"COUNT": 2}),
    ]
    assert figures(traces, "TRACES", "latency", "AVG", "P50", "MAX") == [({}, {"AVG": 10, "P50.0": 10, "MAX": 20})]
    assert figures(traces, "TRACES", "input_tokens", "SUM", dimensions=["trace_name"]) == [
        ({"trace_name": "x"}, {"SUM": 4}),
        ({"trace_name": "y"}, {"SUM": 2}),
    ]
    assert figures(traces, "TRACES", "session_count", "COUNT") == [({}, {"COUNT": 2})]
    hours = figures(traces, "TRACES", "trace_count", "COUNT", interval_s=2, from_ms=0, until_ms=9000)
    assert [(dimensions["time_bucket"], values["COUNT"]) for dimensions, values in hours] == [
        ("1970-01-01T00:00:00+00:00", 2),
        ("1970-01-01T00:00:02+00:00", 1),
    ]
    assert figures(traces, "TRACES", "trace_count", "COUNT", filters=["trace.tag.`mlflow.traceName` = 'x'"]) == [
        ({}, {"COUNT": 2})
    ]


def test_figures_of_spans_and_assessments(traces: TraceService) -> None:
    cost = {"mlflow.llm.cost": {"total_cost": 0.5}, "mlflow.llm.model": "m", "mlflow.spanType": "LLM"}
    traces.log_spans("0", [span(1), span(2, parent=1, **cost)])
    assert figures(traces, "SPANS", "total_cost", "SUM", dimensions=["span_model_name"]) == [
        ({"span_model_name": "m"}, {"SUM": 0.5})
    ]
    assert figures(traces, "SPANS", "latency", "P50", filters=["span.type = 'LLM'"]) == [({}, {"P50.0": 2000})]
    traces.create_assessment(feedback(HEX, "yes"))
    traces.create_assessment(feedback(HEX, False))
    assert figures(traces, "ASSESSMENTS", "assessment_value", "AVG", dimensions=["assessment_name"]) == [
        ({"assessment_name": "quality"}, {"AVG": 0.5})
    ]


def test_questions_that_make_no_sense_are_refused(traces: TraceService) -> None:
    for more, words in {
        ("TRACES", "nonsense", "COUNT"): "metric_name must be one of",
        ("TRACES", "trace_count", "SUM"): "Found invalid aggregation_type",
        ("LEAVES", "trace_count", "COUNT"): "view_type must be one of",
    }.items():
        with pytest.raises(InvalidInput, match=words):
            figures(traces, *more)
    with pytest.raises(InvalidInput, match="only '=' operator"):
        figures(traces, "TRACES", "trace_count", "COUNT", filters=["trace.status != 'OK'"])
    with pytest.raises(InvalidInput, match="only supported for SPANS"):
        figures(traces, "TRACES", "trace_count", "COUNT", filters=["span.name = 'x'"])


def test_texts_with_a_zero_in_them_are_kept(traces: TraceService) -> None:
    start(traces, "a", tags={"k": "x\x00y"}, metadata={"m": "\x00"}, request_preview="\x00")
    traces.log_spans("0", [span(1, name="n\x00", text="in it: \x00")])
    traces.create_assessment(feedback("a", "v\x00", rationale="r\x00"))
    assert traces.get("a").tags["k"] == "x\ufffdy"
    assert len(traces.whole(HEX, partial=True).spans) == 1


def test_what_has_no_room_is_refused(traces: TraceService) -> None:
    for id in ("", "x" * 251):
        with pytest.raises(InvalidInput, match="1 to 250 characters"):
            start(traces, id)
    with pytest.raises(InvalidInput, match="'key' exceeds"):
        start(traces, "a", tags={"k" * 251: "v"})
    start(traces, "a")
    with pytest.raises(InvalidInput, match="'assessment_name' exceeds"):
        traces.create_assessment(feedback("a", 1, name="n" * 251))
