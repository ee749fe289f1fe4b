"""Sources on the server's own disk are for who owns them; steps upwards are for nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.core.errors import InvalidInput, WindlassError
from windlass.registry import sources
from windlass.registry.naming import LARGEST_VERSION
from windlass.registry.sources import ModelUri


@pytest.mark.parametrize("more", ["", "/model", "/.", "/model/.."])
def test_a_path_among_the_artifacts_will_do(tmp_path: Path, more: str) -> None:
    sources.check_local(f"{tmp_path}{more}", str(tmp_path), "run_id")
    sources.check_local(f"{tmp_path.as_uri()}{more}", tmp_path.as_uri(), "run_id")


def test_a_path_elsewhere_will_not(tmp_path: Path) -> None:
    root = tmp_path / "run"
    for source in ("/etc", f"{root}/../other", f"{root}-not", "relative"):
        with pytest.raises(InvalidInput, match="To use a local path as a model version source, the run_id"):
            sources.check_local(source, str(root), "run_id")
    with pytest.raises(InvalidInput, match="To use a local path"):
        sources.check_local(str(root), "mlflow-artifacts:/1/run/artifacts", "run_id")
    with pytest.raises(InvalidInput, match="the model_id request parameter"):
        sources.check_local(str(root), None, "model_id")


@pytest.mark.parametrize("source", ["/a%00b", "file:///a%00b"])
def test_a_path_with_a_nul_is_none(source: str) -> None:
    with pytest.raises(InvalidInput, match="a path has no NUL"):
        sources.check_local(source, "/a", "run_id")


def test_a_version_of_any_number_of_digits() -> None:
    found = sources.read_model_uri(f"models:/m/{'9' * 5000}")
    assert found == ModelUri(name="m", version=LARGEST_VERSION + 1)


def test_a_link_leads_to_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "out").symlink_to("/etc")
    with pytest.raises(InvalidInput, match="To use a local path"):
        sources.check_local(f"{tmp_path}/run/out/passwd", f"{tmp_path}/run", "run_id")


def test_what_is_local() -> None:
    assert all(map(sources.is_local, ["/a", "a/b", "file:///a", "file://localhost/a"]))
    assert not sources.is_local("s3://a/b")
    with pytest.raises(WindlassError, match="is not a valid remote uri"):
        sources.is_local("file://123.456.789.123/a")


@pytest.mark.parametrize(
    "source",
    [
        "mlflow-artifacts:/models",
        "mlflow-artifacts:/models///",
        "mlflow-artifacts:/models/foo///bar",
        "mlflow-artifacts://host:9000/models/artifact/..../",
        "s3://bucket/path/to/model",
        "runs:/run_id/model",
        "models:/m-1",
    ],
)
def test_sources_elsewhere(source: str) -> None:
    sources.check_remote(source)


@pytest.mark.parametrize(
    "source",
    [
        "mlflow-artifacts://host:9000/models/../../../",
        "http://host:9000/models/../../../",
        "mlflow-artifacts://host:9000/models/..%2f..%2fartifacts",
        "mlflow-artifacts://host:9000/models/..%252fartifacts",
        "mlflow-artifacts://host:9000/models/artifact%00",
        "dbfs:/run/artifacts/a%3f/../../../../../../../../../../",
        "s3://bucket",
    ],
)
def test_steps_upwards_are_refused_however_they_are_written(source: str) -> None:
    with pytest.raises(InvalidInput, match="If supplying a source as an http, https,"):
        sources.check_remote(source)


def test_prompts_have_no_source_on_the_disk() -> None:
    sources.check_prompt_source("prompt-template")
    for source in ("/etc/passwd", "file:///etc/passwd"):
        with pytest.raises(InvalidInput, match="Local source paths are not allowed for prompts"):
            sources.check_prompt_source(source)
    with pytest.raises(InvalidInput, match="absolute path"):
        sources.check_prompt_source("https://host/../a")


def test_a_pattern_of_the_server() -> None:
    sources.check_pattern("s3://a/b", None)
    sources.check_pattern("mlflow-artifacts:/a", r"^mlflow-artifacts:/.*$")
    with pytest.raises(InvalidInput, match="Invalid model version source: 's3://a/b'"):
        sources.check_pattern("s3://a/b", r"^mlflow-artifacts:/.*$")


def test_uris_of_models() -> None:
    assert sources.read_model_uri("s3://a/b") is None
    assert sources.read_model_uri("models:/m-1") == ModelUri(model_id="m-1")
    assert sources.read_model_uri("models:/a/3") == ModelUri(name="a", version=3)
    assert sources.read_model_uri("models:/a/latest") == ModelUri(name="a")
    assert sources.read_model_uri("models:/a/Production") == ModelUri(name="a", stage="Production")
    assert sources.read_model_uri("models:/a@champion") == ModelUri(name="a", alias="champion")
    for uri in ("models:/", "models:a", "models:/a/b/c", "models:/a/ "):
        with pytest.raises(InvalidInput, match="Not a proper models:/ URI"):
            sources.read_model_uri(uri)
