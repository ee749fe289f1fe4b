"""What frameworks tell MLflow by themselves, from scripts that know nothing of Windlass: it is the run's."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import BOTH_DATABASES, skip_unless_ci
from tests.e2e.sites import Installation, LocalSite
from windlass.client import Client
from windlass.client.run import Run

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(300), pytest.mark.xdist_group("frameworks")]

EXAMPLES = Path(__file__).parents[2] / "examples" / "mlflow"


@pytest.fixture(scope="module", params=BOTH_DATABASES)
def installation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    environ = {}
    if request.param == "postgres":
        environ["WINDLASS_DATABASE_URL"] = request.getfixturevalue("postgres_server").create_database()
    installation = Installation(tmp_path_factory.mktemp("mlflow"), LocalSite(), environ=environ)
    yield installation
    installation.close()


@pytest.fixture
def client(installation: Installation) -> Iterator[Client]:
    with installation.client() as client:
        yield client


def finished(client: Client, framework: str) -> Run:
    """Of the example that uses it."""
    if importlib.util.find_spec(framework) is None:
        skip_unless_ci(framework, ModuleNotFoundError("`make frameworks` installs it"))
    [script] = EXAMPLES.glob(f"{framework}_*.py")
    run = client.submit(
        command=[sys.executable, script.name], code=EXAMPLES, env={"OMP_NUM_THREADS": "1"}, retry={"max": 0}
    ).wait(timeout=250)
    assert run.state == "succeeded", "\n".join(line.text for line in run.logs())
    return run


def told_of(client: Client, run: Run) -> tuple[Mapping[str, Any], set[str]]:
    """Its params, as MLflow knows them, and the names of its artifacts."""
    answer = client.transport.get("/api/2.0/mlflow/runs/get", {"run_id": run.id})
    params = {param["key"]: param["value"] for param in answer["run"]["data"]["params"]}
    files = client.artifacts(run.id).list(recursive=True).files
    return params, {file.path for file in files}


def printed(run: Run, name: str) -> float:
    [value] = re.findall(rf"^{name} ([\d.]+)$", "\n".join(line.text for line in run.logs()), re.MULTILINE)
    return float(value)


def test_scikit_learn(client: Client) -> None:
    run = finished(client, "sklearn")
    params, files = told_of(client, run)
    assert (params["n_estimators"], params["max_depth"]) == ("20", "4")
    assert run.metrics()["training_r2_score"].last == pytest.approx(printed(run, "r2"), abs=1e-4)
    assert "estimator.html" in files


def test_xgboost(client: Client) -> None:
    run = finished(client, "xgboost")
    params, files = told_of(client, run)
    rounds = run.metrics()["train-rmse"]
    assert params["max_depth"] == "4"
    assert rounds.steps == tuple(range(20))
    assert rounds.last == pytest.approx(printed(run, "rmse"), abs=1e-5)
    assert "feature_importance_weight.json" in files


def test_lightning(client: Client) -> None:
    run = finished(client, "lightning")
    params, files = told_of(client, run)
    metrics = run.metrics()
    assert params["optimizer_name"] == "SGD"
    for name in ("loss", "lightning-loss"):
        assert len(metrics[name].steps) == 5
        assert metrics[name].last == pytest.approx(printed(run, "loss"), abs=1e-5)
    assert "model_summary.txt" in files


def test_transformers(client: Client) -> None:
    run = finished(client, "transformers")
    params, _ = told_of(client, run)
    losses = run.metrics()["loss"]
    assert params["learning_rate"] == "0.01"
    assert losses.steps == (2, 4, 6, 8, 10)
    assert sum(losses.values) / 5 == pytest.approx(printed(run, "loss"), abs=1e-3)
