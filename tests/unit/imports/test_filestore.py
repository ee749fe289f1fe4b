"""A folder of MLflow's file store, read without MLflow."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from windlass.core.errors import InvalidInput
from windlass.imports.filestore import FolderSource
from windlass.imports.opening import open_source
from windlass.imports.records import Owner, Point, Run

RUN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "mlruns"
    put = {
        "7/meta.yaml": "experiment_id: '7'\nname: vision\nlifecycle_stage: active\n",
        "7/tags/team": "eyes",
        f"7/{RUN}/meta.yaml": f"run_id: {RUN}\nrun_name: one\nstatus: 4\nstart_time: 5\nend_time: 9\nuser_id: me\n"
        "lifecycle_stage: active\nartifact_uri: file:///elsewhere/artifacts\n",
        f"7/{RUN}/params/opt/lr": "0.1",
        f"7/{RUN}/tags/mlflow.note.content": "line\nline",
        f"7/{RUN}/metrics/train/loss": "10 0.5 0\n11 nan 1\n12 inf 2\n13 0.2",
        f"7/{RUN}/metrics/old": "10 0.5\n",
        f"7/{RUN}/artifacts/model/weights": "12345",
        "7/meta-less/params/x": "1",
        ".trash/8/meta.yaml": "experiment_id: '8'\nname: gone\nlifecycle_stage: deleted\n",
    }
    for name, text in put.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def only_run(source: FolderSource) -> Run:
    [experiment] = source.experiments(deleted=False)
    [run] = source.runs(experiment, deleted=False)
    return run


def test_a_run_with_all_that_it_has(folder: Path) -> None:
    source = FolderSource(folder)
    [experiment] = source.experiments(deleted=False)
    assert (experiment.name, experiment.tags) == ("vision", {"team": "eyes"})
    run = only_run(source)
    assert (run.id, run.name, run.status, run.user, run.start_ms, run.end_ms) == (RUN, "one", "FAILED", "me", 5, 9)
    assert run.params == {"opt/lr": "0.1"}
    assert run.tags == {"mlflow.note.content": "line\nline"}
    assert set(run.metrics) == {"train/loss", "old"}


def test_a_line_that_is_being_written_is_left_for_later(folder: Path) -> None:
    source = FolderSource(folder)
    (folder / "7" / RUN / "metrics/train/loss").write_text("10 0.5 0\n11 nan 1\n12 inf 2\n13 0.25")
    points = list(source.history(only_run(source), "train/loss"))
    assert [points[0], points[2]] == [Point(0, 10, 0.5), Point(2, 12, math.inf)]
    assert math.isnan(points[1].value)
    assert len(points) == 3
    assert list(source.history(only_run(source), "old")) == [Point(0, 10, 0.5)]  # of versions without steps


def test_files_are_found_where_the_folder_is_now(folder: Path) -> None:
    source = FolderSource(folder)
    run = only_run(source)
    assert [tuple(file) for file in source.files(run.files)] == [("model/weights", 5)]
    with source.reading(run.files, "model/weights") as pieces:
        assert b"".join(pieces) == b"12345"
    with pytest.raises(InvalidInput, match="No such file"), source.reading(run.files, "nothing"):
        pass


def test_files_that_are_in_a_bucket_are_said_to_be(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "run"
    place.mkdir()
    (place / "meta.yaml").write_text("artifact_uri: s3://bucket/run/artifacts\n")
    with pytest.raises(InvalidInput, match="s3://bucket/run/artifacts"):
        list(FolderSource(folder).files(Owner("run", RUN, str(place))))


def test_deleted_runs_and_experiments_are_seen_only_if_they_are_wanted(folder: Path) -> None:
    source = FolderSource(folder)
    meta = folder / "7" / RUN / "meta.yaml"
    meta.write_text(meta.read_text().replace("lifecycle_stage: active", "lifecycle_stage: deleted"))
    [experiment] = source.experiments(deleted=False)
    assert list(source.runs(experiment, deleted=False)) == []
    assert [run.deleted for run in source.runs(experiment, deleted=True)] == [True]
    assert [(one.name, one.deleted) for one in source.experiments(deleted=True)] == [("vision", False), ("gone", True)]


def test_what_is_no_folder_of_mlflow_is_refused_with_what_to_do(folder: Path, tmp_path: Path) -> None:
    assert open_source(str(folder.parent), {}).address == folder.as_uri()  # the folder above does as well
    assert open_source(folder.as_uri(), {}).address == folder.as_uri()
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InvalidInput, match="no experiment is in it"):
        open_source(str(empty), {})
    with pytest.raises(InvalidInput, match="there is no folder"):
        open_source(str(tmp_path / "nothing"), {})
    with pytest.raises(InvalidInput, match="database") as refused:
        open_source("sqlite:///mlflow.db", {})
    assert "mlflow server --backend-store-uri sqlite:///mlflow.db" in (refused.value.hint or "")
    with pytest.raises(InvalidInput, match="cannot be imported from"):
        open_source("databricks://profile", {})
