"""What nobody should send to MLflow's API: refused in words on both databases, never a failure of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from windlass.server.compose import compose
from windlass.server.settings import Settings
from windlass.testing.servers import serving

pytestmark = pytest.mark.timeout(180)

DEEP = "[" * 100_000 + "]" * 100_000
SPAN = {"traceId": "07" * 16, "spanId": "01" * 8, "name": "root"}


@pytest.fixture
def api(settings: Settings) -> Iterator[httpx.Client]:
    parts = compose(settings)
    with serving(parts) as client:
        yield client
    parts.db.close()


def exported(**more: Any) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": [{**SPAN, **more}]}]}]}


def assessed(**more: Any) -> dict[str, Any]:
    return {"assessment": {"assessment_name": "a", **more}}


BAD: list[tuple[str, str, Any]] = [
    ("POST", "/api/2.0/mlflow/experiments/create", {"name": "a\0b"}),
    ("POST", "/api/2.0/mlflow/experiments/create", {"name": "a\ud800"}),
    ("POST", "/api/2.0/mlflow/experiments/set-experiment-tag", {"experiment_id": "0", "key": "a", "value": "\0"}),
    ("POST", "/api/2.0/mlflow/experiments/create", {"name": "tagged", "tags": [{"key": "k", "value": "\0"}]}),
    ("GET", "/api/2.0/mlflow/runs/get?run_id=a%00", None),
    ("POST", "/api/2.0/mlflow/runs/create", {"run_name": "in no experiment"}),
    ("POST", "/api/2.0/mlflow/runs/create", {"experiment_id": ""}),
    ("POST", "/api/2.0/mlflow/runs/search", {"experiment_ids": ["0"], "filter": "params.a = '\0'"}),
    ("GET", "/api/3.0/mlflow/traces/a%00b", None),
    ("POST", "/api/3.0/mlflow/traces/search", {"locations": [{"mlflow_experiment": {"experiment_id": "9" * 30}}]}),
    ("POST", "/api/2.0/mlflow/traces", {"experiment_id": "9" * 30, "timestamp_ms": 1}),
    ("POST", "/api/2.0/mlflow/traces", {"experiment_id": "0", "timestamp_ms": 2**62}),
    ("POST", "/api/2.0/mlflow/traces", {"experiment_id": "0", "timestamp_ms": 1, "tags": [5]}),
    ("POST", "/api/3.0/mlflow/traces/link-prompts", {"trace_id": "t", "prompt_versions": [5]}),
    (
        "POST",
        "/api/3.0/mlflow/traces/metrics",
        {"experiment_ids": ["0"], "view_type": 1, "metric_name": "m", "aggregations": [5]},
    ),
    ("POST", "/api/3.0/mlflow/gateway/endpoints/create", {"name": "e", "model_configs": [5]}),
    (
        "POST",
        "/api/3.0/mlflow/gateway/endpoints/create",
        {"name": "e", "model_configs": [{"model_definition_id": "m"}], "experiment_id": "²"},
    ),
    ("POST", "/api/3.0/mlflow/traces/t/assessments", assessed(expectation={"serialized_value": "x"})),
    (
        "POST",
        "/api/3.0/mlflow/traces/t/assessments",
        assessed(expectation={"serialized_value": {"serialization_format": "JSON_FORMAT", "value": "{"}}),
    ),
    ("POST", "/api/3.0/mlflow/traces/t/assessments", assessed(feedback={"error": "text"})),
    (
        "POST",
        "/api/3.0/mlflow/scorers/register",
        {"experiment_id": "0", "name": "s", "serialized_scorer": '{"builtin_scorer_pydantic_data": "x"}'},
    ),
    ("POST", "/api/3.0/mlflow/scorers/register", {"experiment_id": "0", "name": "s", "serialized_scorer": DEEP}),
    ("POST", "/v1/traces", exported(name={})),
    ("POST", "/v1/traces", exported(attributes=[{"key": 5, "value": {}}])),
    ("POST", "/v1/traces", exported(startTimeUnixNano=2**63)),
    ("POST", "/graphql", {"query": "{ test }", "operationName": [1]}),
]


def test_what_nobody_can_mean_is_refused(api: httpx.Client) -> None:
    for method, path, body in BAD:
        headers = {"Content-Type": "application/json", "x-mlflow-experiment-id": "0"}
        answer = api.request(method, path, content=json.dumps(body) if body else None, headers=headers)
        assert 400 <= answer.status_code < 500, (path, body, answer.text)
        assert answer.text
    assert api.post("/graphql", json={"query": "{ mlflowGetRun(input: 5) { run } }"}).json()["errors"]
    assert api.post("/graphql", content=DEEP).status_code == 400
    assert api.post("/v1/traces", json=exported(), headers={"x-mlflow-experiment-id": "9" * 30}).status_code == 400
    found = api.post(
        "/api/3.0/mlflow/traces/search", json={"locations": [{"mlflow_experiment": {"experiment_id": "0"}}]}
    )
    assert found.json() == {"traces": []}


def test_records_of_datasets_are_looked_at(api: httpx.Client) -> None:
    made = api.post("/api/3.0/mlflow/datasets/create", json={"name": "d", "tags": '{"n": 5}'}).json()["dataset"]
    at = f"/api/3.0/mlflow/datasets/{made['dataset_id']}"
    human = {"source_type": "HUMAN"}
    for record in (
        5,
        {"inputs": {}, "tags": "x"},
        {"inputs": {}, "expectations": 5},
        {"inputs": {}, "source": {**human, "source_data": [1]}},
        {"inputs": {}, "source": {**human, "source_data": {"source_id": 5}}},
        {"inputs": {}, "tags": {"mlflow.user": "\0"}},
    ):
        answer = api.post(f"{at}/records", json={"records": json.dumps([record])})
        assert answer.status_code == 400, (record, answer.text)
    assert api.post(f"{at}/records", json={"records": DEEP}).status_code == 400
    for id in ("²", "9" * 30, "77"):
        assert api.post(f"{at}/add-experiments", json={"experiment_ids": [id]}).status_code in (400, 404), id
    assert api.get(f"{at}/records?max_results=-5").status_code == 400
    assert api.get(f"{at}/records?max_results={2**63 - 1}").status_code == 200
    assert api.get(f"{at}/records?page_token=OTk5OTk5OTk5OTk5OTk5OTk5OTk5Ong=").status_code == 400


def test_what_programs_wrote_is_kept_all_the_same(api: httpx.Client) -> None:
    begun = {"experiment_id": "0", "timestamp_ms": 1, "tags": [{"key": "said", "value": "a\0b\ud800"}]}
    headers = {"Content-Type": "application/json"}
    answer = api.post("/api/2.0/mlflow/traces", content=json.dumps(begun), headers=headers)
    assert {"key": "said", "value": "a\ufffdb\ufffd"} in answer.json()["trace_info"]["tags"]
    spoken = exported(
        attributes=[
            {"key": "mlflow.chat.tokenUsage", "value": {"stringValue": DEEP}},
            {"key": "mlflow.llm.cost", "value": {"stringValue": json.dumps({"total_cost": 10**400})}},
            {"key": "text", "value": {"stringValue": "\ud800\0"}},
        ]
    )
    sent = api.post("/v1/traces", content=json.dumps(spoken), headers={**headers, "x-mlflow-experiment-id": "0"})
    assert sent.status_code == 200, sent.text
    whole = api.get(f"/api/3.0/mlflow/traces/get?trace_id=tr-{'07' * 16}")
    assert len(whole.json()["trace"]["spans"]) == 1


def test_what_is_not_there_and_what_is_not_done_there_are_told_apart(api: httpx.Client) -> None:
    assert api.get("/api/2.0/mlflow/experiments/nothing").json()["error_code"] == "ENDPOINT_NOT_FOUND"
    assert api.delete("/api/2.0/mlflow/experiments/create").status_code == 405
    assert api.delete("/ajax-api/2.0/mlflow/gateway-proxy").status_code == 405
