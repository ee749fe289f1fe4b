"""What the token of a run opens."""

from __future__ import annotations

import pytest

from windlass.api.mlflow.errors import MlflowError
from windlass.api.mlflow.runaccess import check_path, check_values

OWN, OTHER, THEIRS = "r-bcdfghjkmn", "r-zzzzzzzzzz", "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/2.0/mlflow/runs/create"),
        ("POST", "/api/2.0/mlflow/runs/log-batch"),
        ("POST", "/api/2.0/mlflow/runs/delete-tag"),
        ("POST", "/api/2.0/mlflow/runs/search"),
        ("POST", "/api/2.0/mlflow/experiments/create"),
        ("POST", "/api/2.0/mlflow/registered-models/create"),
        ("POST", "/api/2.0/mlflow/registered-models/alias"),
        ("DELETE", "/api/2.0/mlflow/logged-models/m-1/tags/x"),
        ("PUT", f"/api/2.0/mlflow-artifacts/artifacts/0/{OWN}/artifacts/a.txt"),
        ("PUT", f"/api/2.0/mlflow-artifacts/artifacts/0/{THEIRS}/artifacts/a.txt"),
        ("GET", f"/api/2.0/mlflow-artifacts/artifacts/0/{OTHER}/artifacts/a.txt"),
        ("POST", "/v1/traces"),
    ],
)
def test_what_a_program_needs_is_open(method: str, path: str) -> None:
    check_path(OWN, method, path)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/2.0/mlflow/runs/delete"),
        ("POST", "/api/2.0/mlflow/experiments/delete"),
        ("POST", "/api/2.0/mlflow/experiments/restore"),
        ("POST", "/api/2.0/mlflow/experiments/update"),
        ("DELETE", "/api/2.0/mlflow/registered-models/delete"),
        ("POST", "/api/2.0/mlflow/registered-models/rename"),
        ("POST", "/api/2.0/mlflow/model-versions/transition-stage"),
        ("POST", "/api/2.0/mlflow/traces/delete-traces"),
        ("POST", "/api/2.0/mlflow/webhooks"),
        ("GET", "/api/2.0/mlflow/webhooks/w-1"),
        ("POST", "/api/3.0/mlflow/gateway/secrets/create"),
        ("DELETE", f"/api/2.0/mlflow-artifacts/artifacts/0/{OWN}/artifacts/a.txt"),
        ("PUT", f"/api/2.0/mlflow-artifacts/artifacts/0/{OTHER}/artifacts/a.txt"),
        ("POST", f"/api/2.0/mlflow-artifacts/mpu/create/0/{OTHER}/artifacts/a.txt"),
        ("DELETE", "/api/2.0/mlflow/logged-models/m-1"),
    ],
)
def test_what_is_others_is_closed(method: str, path: str) -> None:
    with pytest.raises(MlflowError, match="not open to the token"):
        check_path(OWN, method, path)


def test_only_its_own_run_and_those_of_clients_are_written_to() -> None:
    for run_id in (OWN, THEIRS, "", None):
        check_values(OWN, "POST", {"run_id": run_id})
    check_values(OWN, "GET", {"run_id": OTHER})
    for name in ("run_id", "run_uuid"):
        with pytest.raises(MlflowError, match="writing to run"):
            check_values(OWN, "POST", {name: OTHER})
