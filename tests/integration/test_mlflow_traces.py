"""Traces, assessments and data sets by the unmodified client of MLflow, on both databases."""

from __future__ import annotations

import httpx
import pytest

from tests.mlflow_programs import Program

pytestmark = pytest.mark.timeout(180)


def test_a_traced_function_is_found_with_its_spans_and_feedback(program: Program) -> None:
    result = program("""
from mlflow.entities import AssessmentSource
experiment = mlflow.set_experiment("agent").experiment_id

@mlflow.trace(span_type="TOOL")
def look_up(word):
    return {"found": word}

@mlflow.trace
def answer(question):
    mlflow.update_current_trace(tags={"env": "prod"}, metadata={"mlflow.trace.session": "s-1"})
    return look_up(question)

answer("ü")
try:
    with mlflow.start_span(name="broken"):
        raise ValueError("no")
except ValueError:
    pass
mlflow.flush_trace_async_logging()
def names(filter):
    found = mlflow.search_traces(locations=[experiment], filter_string=filter, return_type="list")
    return [trace.info.tags["mlflow.traceName"] for trace in found]
[trace] = mlflow.search_traces(locations=[experiment], filter_string="tags.env = 'prod'", return_type="list")
source = AssessmentSource(source_type="HUMAN", source_id="ann")
first = mlflow.log_feedback(trace_id=trace.info.trace_id, name="good", value=False, source=source)
mlflow.override_feedback(trace_id=trace.info.trace_id, assessment_id=first.assessment_id, value=True, source=source)
mlflow.log_expectation(trace_id=trace.info.trace_id, name="words", value=["a", "b"], source=source)
again = mlflow.get_trace(trace.info.trace_id)
result |= {
    "spans": [[span.name, span.span_type, span.inputs, span.status.status_code.value] for span in again.data.spans],
    "session": again.info.trace_metadata["mlflow.trace.session"],
    "request": again.info.request_preview,
    "assessments": sorted([one.name, one.value, one.valid] for one in again.info.assessments),
    "broken": names("status = 'ERROR'"),
    "tools": names("span.type = 'TOOL' AND span.name = 'look_up'"),
    "text": names("trace.text LIKE '%found%'"),
    "good": names("feedback.good = 'true'"),
    "deleted": client.delete_traces(experiment, max_timestamp_millis=10**14),
}
""")
    assert result == {
        "spans": [["answer", "UNKNOWN", {"question": "ü"}, "OK"], ["look_up", "TOOL", {"word": "ü"}, "OK"]],
        "session": "s-1",
        "request": '{"question": "ü"}',
        "assessments": [["good", False, False], ["good", True, True], ["words", ["a", "b"], None]],
        "broken": ["broken"],
        "tools": ["answer"],
        "text": ["answer"],
        "good": ["answer"],
        "deleted": 2,
    }


def test_traces_of_a_run_and_errors_in_mlflows_words(program: Program) -> None:
    result = program("""
experiment = mlflow.set_experiment("agent").experiment_id
with mlflow.start_run() as run:
    with mlflow.start_span(name="inside"):
        pass
with mlflow.start_span(name="outside") as span:
    pass
mlflow.flush_trace_async_logging()
client.link_traces_to_run(trace_ids=[span.trace_id], run_id=run.info.run_id)
found = mlflow.search_traces(run_id=run.info.run_id, locations=[experiment], return_type="list")
def code(deed):
    try:
        deed()
    except mlflow.MlflowException as error:
        return error.error_code
result |= {
    "linked": sorted(trace.info.tags["mlflow.traceName"] for trace in found),
    "missing": code(lambda: client.set_trace_tag("tr-nobody", "a", "b")),
    "filter": code(lambda: mlflow.search_traces(locations=[experiment], filter_string="nonsense")),
}
""")
    assert result == {
        "linked": ["inside", "outside"],
        "missing": "RESOURCE_DOES_NOT_EXIST",
        "filter": "INVALID_PARAMETER_VALUE",
    }


def test_a_data_set_takes_records_from_traces(program: Program) -> None:
    result = program("""
from mlflow.genai import datasets
experiment = mlflow.set_experiment("agent").experiment_id
made = datasets.create_dataset(name="questions", experiment_id=[experiment], tags={"team": "a"})
made.merge_records([{"inputs": {"q": "1"}, "expectations": {"a": "x"}}, {"inputs": {"q": "2"}}])
made.merge_records([{"inputs": {"q": "1"}, "expectations": {"b": "y"}}])
again = datasets.get_dataset(dataset_id=made.dataset_id)
frame = again.to_df()
result |= {
    "name": again.name,
    "records": sorted([row["inputs"]["q"], row["expectations"]] for _, row in frame.iterrows()),
    "found": [one.name for one in datasets.search_datasets(filter_string="tags.team = 'a'")],
    "experiments": again.experiment_ids == [experiment],
}
datasets.delete_dataset(dataset_id=made.dataset_id)
result["left"] = len(datasets.search_datasets(experiment_ids=[experiment]))
""")
    records = result.pop("records")
    assert records[0] == ["1", {"a": "x", "b": "y"}]
    assert result == {"name": "questions", "found": ["questions"], "experiments": True, "left": 0}


def test_other_exporters_send_json_and_are_told_what_is_wrong(api: httpx.Client) -> None:
    span = {"traceId": "0a" * 16, "spanId": "0b" * 8, "name": "GET /", "startTimeUnixNano": "5", "endTimeUnixNano": "9"}
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}
    body = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]}
    headers = {"x-mlflow-experiment-id": "0"}
    assert api.post("/v1/traces", json=body, headers=headers).status_code == 200
    found = api.get("/api/3.0/mlflow/traces/get", params={"trace_id": "tr-" + "0a" * 16}).json()["trace"]
    assert found["trace_info"]["tags"]["service.name"] == "shop"
    assert found["spans"][0]["name"] == "GET /"
    assert api.post("/v1/traces", json=body).status_code == 422
    refused = api.post("/v1/traces", content=b"\xff", headers={**headers, "Content-Type": "application/x-protobuf"})
    assert (refused.status_code, refused.json()) == (400, {"detail": "Invalid OpenTelemetry format"})
    elsewhere = api.post("/v1/traces", json=body, headers={"x-mlflow-experiment-id": "77"})
    assert (elsewhere.status_code, elsewhere.json()["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
    span["traceId"] = "0c" * 16
    assert api.post("/v1/traces", json=body, headers={"x-mlflow-experiment-id": "77"}).status_code == 404
