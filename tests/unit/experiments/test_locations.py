from __future__ import annotations

from pathlib import Path

import pytest

from windlass.core.errors import InvalidInput
from windlass.experiments.locations import checked_location, extended, model_location, own_location, run_location


@pytest.mark.parametrize(
    ("uri", "longer"),
    [
        ("mlflow-artifacts:/3", "mlflow-artifacts:/3/a/b"),
        ("s3://bucket/base?versionId=1", "s3://bucket/base/a/b?versionId=1"),
        ("/data/runs", "/data/runs/a/b"),
        ("file:///data", "file:///data/a/b"),
        ("file:relative", "file:relative/a/b"),
        ("s3://bucket", "s3://bucket/a/b"),
    ],
)
def test_a_path_is_added_before_the_query(uri: str, longer: str) -> None:
    assert extended(uri, "a", "b") == longer


def test_runs_and_models_have_places_within_their_experiment() -> None:
    assert run_location(own_location(3), "abc") == "mlflow-artifacts:/3/abc/artifacts"
    assert own_location(7, "s3://bucket/mlruns/") == "s3://bucket/mlruns/7"
    assert own_location(7, "/shared/mlruns") == "/shared/mlruns/7"
    assert own_location(7, "file:///") == "file:///7"
    assert model_location(own_location(0), "m-1") == "mlflow-artifacts:/0/models/m-1/artifacts"


def test_relative_paths_begin_where_the_server_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert checked_location("here") == f"{tmp_path}/here"
    assert checked_location("file:here") == f"file://{tmp_path}/here"
    for absolute in ("/there", "file:///there", "s3://bucket/x", "mlflow-artifacts:/x"):
        assert checked_location(absolute) == absolute


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("s3://bucket/x#part", "fragments or params"),
        ("s3://bucket/x?a=../../etc", "Invalid query string"),
        ("s3://bucket/x?a=%252e%252e/etc", "Invalid query string"),
        ("runs:/abc/model", "cannot be a runs:/ URI"),
        ("s3://bucket/" + "x" * 3_000, "Invalid artifact path length"),
    ],
)
def test_places_that_cannot_be_are_refused(location: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        checked_location(location)
