"""Runs side by side over HTTP, from all over the record."""

from __future__ import annotations

import hashlib
import io
import tarfile
from typing import Any

from httpx import Client

from tests.integration.api_calls import error_of, submit


def snapshot(api: Client, files: dict[str, bytes]) -> str:
    digests = {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
    listed = [{"path": path, "sha256": digests[path], "size": len(data)} for path, data in files.items()]
    receipt = api.post("/api/snapshots", json={"files": listed}).json()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, data in files.items():
            entry = tarfile.TarInfo(digests[path])
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    assert api.post("/api/blobs", content=packed.getvalue()).status_code == 204
    return str(receipt["digest"])


def submit_with_code(api: Client, files: dict[str, bytes], **spec: Any) -> str:
    body = {"spec": {"command": "python train.py", **spec}, "code_digest": snapshot(api, files)}
    answer = api.post("/api/runs", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def topics(api: Client, *refs: str, **query: Any) -> dict[str, dict[str, list[Any]]]:
    answer = api.get("/api/compare", params={"run": list(refs), **query})
    assert answer.status_code == 200, answer.text
    return {topic["topic"]: {row["key"]: row["values"] for row in topic["rows"]} for topic in answer.json()["topics"]}


def test_params_metrics_and_code_of_two_runs(api: Client) -> None:
    first = submit_with_code(api, {"train.py": b"lr = 1\n", "same.py": b"x\n"}, params={"lr": 0.1, "depth": 2})
    second = submit_with_code(api, {"train.py": b"lr = 2\n", "same.py": b"x\n"}, params={"lr": 0.2, "depth": 2})
    for run_id, loss in ((first, 0.5), (second, 0.25)):
        point = {"step": 1, "at": 1_000.0, "values": {"loss": loss}}
        assert api.post(f"/api/runs/{run_id}/metrics", json={"source": "s", "seq": 0, "points": [point]}).is_success
    found = topics(api, first, second)
    assert found["params"] == {"lr": ["0.1", "0.2"]}
    assert found["metrics"] == {"loss": [0.5, 0.25]}
    assert list(found["code"]) == ["train.py"]
    assert topics(api, first, second, everything=True)["params"]["depth"] == ["2", "2"]
    diff = api.get("/api/compare/code", params={"run": [first, second]}).text
    assert diff == "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-lr = 1\n+lr = 2\n"


def test_a_run_of_an_mlflow_client_can_be_compared(api: Client) -> None:
    ours = submit(api, params={"lr": 0.1})["id"]
    made = api.post("/api/2.0/mlflow/runs/create", json={"experiment_id": "0", "start_time": 1}).json()["run"]["info"]
    sent = {"run_id": made["run_id"], "key": "lr", "value": "0.3"}
    assert api.post("/api/2.0/mlflow/runs/log-parameter", json=sent).is_success
    assert topics(api, ours, made["run_id"])["params"] == {"lr": ["0.1", "0.3"]}


def test_one_run_is_nothing_to_compare_and_a_wrong_one_is_named(api: Client) -> None:
    run_id = submit(api)["id"]
    error_of(api.get("/api/compare", params={"run": [run_id]}), 422, "invalid_input")
    assert (
        "nosuchrun"
        in error_of(api.get("/api/compare", params={"run": [run_id, "nosuchrun"]}), 404, "not_found")["message"]
    )


def test_one_run_is_not_compared_with_itself(api: Client) -> None:
    run = submit(api, name="alone")["id"]
    told = error_of(api.get("/api/compare", params={"run": [run, "alone"]}), 422, "invalid_input")["message"]
    assert told == f"{run} and alone are one run, {run}"
