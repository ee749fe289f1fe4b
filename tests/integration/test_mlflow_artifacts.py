"""Artifacts by the unmodified client of MLflow, on both databases."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tests.mlflow_programs import Program, environment, run_program
from windlass.server.compose import Parts
from windlass.server.settings import Settings

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def program(parts: Parts, api: httpx.Client, tmp_path: Path) -> Program:
    """Runs a program that has `client`, and gives back its `result`. With a token."""
    environ = {**environment(str(api.base_url), parts.services.token), "MLFLOW_ENABLE_PROXY_MULTIPART_UPLOAD": "true"}
    environ |= {"MLFLOW_MULTIPART_UPLOAD_MINIMUM_FILE_SIZE": "6000000", "MLFLOW_MULTIPART_UPLOAD_CHUNK_SIZE": "5242880"}
    return lambda text: run_program(text, environ, tmp_path)


def test_files_text_dictionaries_and_folders(program: Program, settings: Settings) -> None:
    result = program("""
import os, pathlib, random
folder = pathlib.Path("out"); (folder / "deep").mkdir(parents=True)
(folder / "a.txt").write_text("hello"); (folder / "deep" / "b.bin").write_bytes(bytes(range(256)))
large = random.Random(1).randbytes(12_000_003)
pathlib.Path("large.bin").write_bytes(large)
with mlflow.start_run() as run:
    mlflow.log_artifacts(folder, "model")
    mlflow.log_text("some text", "notes/n.txt")
    mlflow.log_dict({"k": [1, 2]}, "d.json")
    mlflow.log_artifact("large.bin")
    mlflow.log_text("other text", "notes/n.txt")
    mlflow.log_table({"x": [1, 2]}, "t.json")
    mlflow.log_table({"x": [3]}, "t.json")
run_id = run.info.run_id
def names(path=None):
    return [[item.path, item.is_dir, item.file_size] for item in client.list_artifacts(run_id, path)]
result |= {"root": names(), "model": names("model"), "file": names("d.json"), "none": names("nowhere")}
got = pathlib.Path(mlflow.artifacts.download_artifacts(run_id=run_id, artifact_path="model", dst_path="got"))
result["fetched"] = sorted(str(path.relative_to(got)) for path in got.rglob("*"))
result["same"] = pathlib.Path(client.download_artifacts(run_id, "large.bin")).read_bytes() == large
result["text"] = mlflow.artifacts.load_text(f"runs:/{run_id}/notes/n.txt")
result["dict"] = mlflow.artifacts.load_dict(f"{run.info.artifact_uri}/d.json")
result["rows"] = len(mlflow.load_table("t.json", run_ids=[run_id]))
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
get_artifact_repository(run.info.artifact_uri).delete_artifacts("model")
result["left"] = [item.path for item in client.list_artifacts(run_id)]
try:
    client.download_artifacts(run_id, "nothing")
except Exception as error:
    result["error"] = str(error)
""")
    assert result["root"] == [
        ["d.json", False, 29],
        ["large.bin", False, 12_000_003],
        ["model", True, None],
        ["notes", True, None],
        ["t.json", False, result["root"][4][2]],
    ]
    assert result["model"] == [["model/a.txt", False, 5], ["model/deep", True, None]]
    assert result["file"] == result["none"] == []
    assert result["fetched"] == ["a.txt", "deep", "deep/b.bin"]
    assert (result["same"], result["text"], result["dict"]) == (True, "other text", {"k": [1, 2]})
    assert result["rows"] == 3
    assert result["left"] == ["d.json", "large.bin", "notes", "t.json"]
    assert "nothing" in result["error"]
    first = hashlib.sha256(random.Random(1).randbytes(12_000_003)[:5_242_880]).hexdigest()
    assert (settings.home / "blobs" / "artifacts" / first[:2] / first).exists(), "the large one came in parts"


def test_a_model_is_logged_registered_and_loaded(program: Program, api: httpx.Client) -> None:
    result = program("""
class Twice(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        return [2 * value for value in model_input]
with mlflow.start_run():
    logged = mlflow.pyfunc.log_model(name="model", python_model=Twice(), registered_model_name="twice")
client.set_registered_model_alias("twice", "champion", 1)
loaded = mlflow.pyfunc.load_model("models:/twice@champion")
result |= {"model": logged.model_id, "said": list(loaded.predict([1, 2]))}
""")
    assert result["said"] == [2, 4]
    base = f"/ajax-api/2.0/mlflow/logged-models/{result['model']}/artifacts"
    listed = api.get(f"{base}/directories").json()
    assert "MLmodel" in [item["path"] for item in listed["files"]]
    text = api.get(f"{base}/files", params={"artifact_file_path": "MLmodel"}).text
    assert result["model"] in text
    same = api.get("/model-versions/get-artifact", params={"name": "twice", "version": "1", "path": "MLmodel"})
    assert same.text == text


class TestRootOfArtifacts:
    """Whoever runs the server has named a folder that clients reach by themselves."""

    @pytest.fixture
    def settings(self, settings: Settings, tmp_path: Path) -> Settings:
        return replace(settings, artifact_root=(tmp_path / "mlruns").as_uri())

    def test_artifacts_lie_there_as_mlflow_puts_them(self, program: Program, tmp_path: Path) -> None:
        result = program("""
result["default"] = client.get_experiment("0").artifact_location
number = client.create_experiment("elsewhere", artifact_location="s3://bucket/own")
result["own"] = client.get_experiment(number).artifact_location
result["number"] = number = mlflow.set_experiment("mine").experiment_id
with mlflow.start_run() as run:
    mlflow.log_text("some text", "notes/n.txt")
result["run"] = run.info.run_id
result["listed"] = [item.path for item in client.list_artifacts(run.info.run_id, "notes")]
""")
        root = tmp_path / "mlruns"
        assert result["default"] == f"{root.as_uri()}/0"
        assert result["own"] == "s3://bucket/own"
        assert (root / result["number"] / result["run"] / "artifacts/notes/n.txt").read_text() == "some text"
        assert result["listed"] == ["notes/n.txt"]

    def test_the_server_reads_what_is_there(self, program: Program, api: httpx.Client) -> None:
        result = program("""
with mlflow.start_run() as run:
    mlflow.log_text("some text", "n.txt")
result["run"] = run.info.run_id
""")
        listed = api.get("/api/2.0/mlflow/artifacts/list", params={"run_id": result["run"]}).json()
        assert listed["files"] == [{"path": "n.txt", "is_dir": False, "file_size": 9}]
        sent = api.get("/get-artifact", params={"run_id": result["run"], "path": "n.txt"})
        assert (sent.status_code, sent.text) == (200, "some text")
