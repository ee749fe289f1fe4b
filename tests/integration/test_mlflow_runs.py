"""A program that knows nothing of Windlass logs by MLflow's package, and what it logs is the run's."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from windlass.client import Client
from windlass.testing.servers import running_server

pytestmark = pytest.mark.timeout(180)
_PATIENCE_S = 90.0
_PROGRAM = """
import mlflow
mlflow.log_param("optimizer", "adam")
with mlflow.start_run(nested=True, run_name="fold 1") as fold:
    mlflow.log_metric("loss", 2.0)
for step in range(3):
    mlflow.log_metric("loss", 1 / (step + 1), step=step)
mlflow.set_tag("grade", "A")
"""


def submit(client: httpx.Client, program: Path, **spec: Any) -> str:
    command = [sys.executable, str(program)]
    env = {"MLFLOW_DISABLE_TELEMETRY": "true", "GIT_PYTHON_REFRESH": "quiet", **spec.pop("env", {})}
    answer = client.post("/api/runs", json={"spec": {"command": command, "code": None, "env": env, **spec}})
    assert answer.status_code < 300, answer.text
    return str(answer.json()["id"])


def await_end(client: httpx.Client, run_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        run: dict[str, Any] = client.get(f"/api/runs/{run_id}").json()
        if run["state"] in ("succeeded", "failed", "cancelled"):
            return run
        time.sleep(0.1)
    raise AssertionError(f"run {run_id} has not ended: {run}")


def tracked(client: httpx.Client, run_id: str) -> dict[str, Any]:
    run: dict[str, Any] = client.get("/api/2.0/mlflow/runs/get", params={"run_id": run_id}).json()["run"]
    return run


def named(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    return {pair["key"]: pair["value"] for pair in pairs}


def logged(run: dict[str, Any]) -> dict[str, float]:
    """Its metrics, but those of its machine."""
    return {key: value for key, value in named(run["data"]["metrics"]).items() if not key.startswith("system/")}


def test_what_a_script_logs_by_mlflow_is_its_runs(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(_PROGRAM)
    with running_server(tmp_path / "home") as server, server.client() as client:
        run_id = submit(client, program, params={"lr": 0.1}, project="speech")
        ended = await_end(client, run_id)
        logs = client.get(f"/api/runs/{run_id}/logs").text
        assert ended["state"] == "succeeded", logs
        run = tracked(client, run_id)
        assert run["info"]["status"] == "FINISHED"
        assert run["info"]["end_time"] >= run["info"]["start_time"] > 0
        assert named(run["data"]["params"]) == {"lr": "0.1", "optimizer": "adam"}
        assert logged(run) == {"loss": 1 / 3}
        assert ended["tags"]["grade"] == "A"
        query = {"experiment_ids": [run["info"]["experiment_id"]], "filter": f"tags.`mlflow.parentRunId` = '{run_id}'"}
        [fold] = client.post("/api/2.0/mlflow/runs/search", json=query).json()["runs"]
        assert fold["info"]["run_name"] == "fold 1"
        assert fold["info"]["status"] == "FINISHED"


def test_a_script_that_chooses_an_experiment_logs_to_its_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import mlflow\nmlflow.set_experiment('vision')\n"
        "with mlflow.start_run(run_name='mine'):\n    mlflow.log_metric('loss', 1.0)\n"
    )
    with running_server(tmp_path / "home") as server:
        with Client(server.url, token=server.token) as owner:
            ended = owner.submit(script="train.py", code=tmp_path, project="speech").wait(timeout=_PATIENCE_S)
            assert ended.state == "succeeded", "\n".join(line.text for line in ended.logs())
        with server.client() as client:
            run = tracked(client, ended.id)
            number = run["info"]["experiment_id"]
            found = client.get("/api/2.0/mlflow/experiments/get", params={"experiment_id": number}).json()
            assert found["experiment"]["name"] == "vision"
            assert logged(run) == {"loss": 1.0}


def test_what_a_run_leaves_becomes_its_artifacts(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import os, pathlib\n"
        "from windlass import job\n"
        "pathlib.Path('loss.txt').write_text('0.5')\n"
        "job.artifact('loss.txt', 'plots/loss.txt')\n"
        "(pathlib.Path(os.environ['SM_MODEL_DIR']) / 'net.bin').write_bytes(b'x' * 1000)\n"
    )
    with running_server(tmp_path / "home") as server, server.client() as client:
        run_id = submit(client, program)
        assert await_end(client, run_id)["state"] == "succeeded"
        deadline = time.monotonic() + 30
        while not (found := client.get(f"/api/runs/{run_id}/artifacts", params={"recursive": True}).json()["files"]):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        while len(found) < 2 and time.monotonic() < deadline:
            found = client.get(f"/api/runs/{run_id}/artifacts", params={"recursive": True}).json()["files"]
        assert [(one["path"], one["size_bytes"]) for one in found] == [("net.bin", 1000), ("plots/loss.txt", 3)]
        listed = client.get("/api/2.0/mlflow/artifacts/list", params={"run_id": run_id}).json()["files"]
        assert {one["path"] for one in listed} == {"net.bin", "plots"}
        assert client.get(f"/api/runs/{run_id}/artifacts/plots/loss.txt").text == "0.5"


def test_the_token_of_a_run_is_in_no_file_and_no_log(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import os, pathlib\n"
        "token = os.environ['MLFLOW_TRACKING_TOKEN']\n"
        f"home = pathlib.Path({str(tmp_path / 'home')!r})\n"
        "held = [path for path in home.rglob('*') if path.is_file() and token.encode() in path.read_bytes()]\n"
        "plans = list(home.rglob('plan.json'))\n"
        "print(len(plans), len(held), token)\n"
    )
    with running_server(tmp_path / "home") as server, server.client() as client:
        run_id = submit(client, program)
        assert await_end(client, run_id)["state"] == "succeeded"
        assert "1 0 ***" in client.get(f"/api/runs/{run_id}/logs").text


def test_a_run_that_fails_or_goes_to_another_server_says_so(tmp_path: Path) -> None:
    failing, elsewhere = tmp_path / "failing.py", tmp_path / "elsewhere.py"
    failing.write_text("import mlflow\nmlflow.log_metric('loss', 1.0)\nraise SystemExit(3)\n")
    elsewhere.write_text(
        "import os\nassert 'MLFLOW_RUN_ID' not in os.environ and 'MLFLOW_TRACKING_TOKEN' not in os.environ\n"
    )
    with running_server(tmp_path / "home") as server, server.client() as client:
        failed = submit(client, failing, retry=None)
        own = submit(client, elsewhere, env={"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"})
        assert await_end(client, failed)["state"] == "failed"
        run = tracked(client, failed)
        assert run["info"]["status"] == "FAILED", "not what the client says when its process ends"
        assert logged(run) == {"loss": 1.0}
        assert await_end(client, own)["state"] == "succeeded"
