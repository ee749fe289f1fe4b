"""What is copied, and under which names."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from windlass.core.marks import MARK_TAG
from windlass.imports import plan
from windlass.imports.plan import Deed, Here, Places
from windlass.imports.records import Experiment, File, LoggedModel, Owner, Point, RegisteredModel, Run, Version

ID = "0123456789abcdef0123456789abcdef"
MODEL = f"m-{ID}"


def run(**changes: object) -> Run:
    return replace(Run(id=ID, name="one", params={"lr": "1"}, files=Owner("run", ID)), **changes)  # type: ignore[arg-type]


def registered(**changes: object) -> RegisteredModel:
    return replace(RegisteredModel(name="m"), **changes)  # type: ignore[arg-type]


def test_a_run_is_copied_once_and_again_when_it_has_changed() -> None:
    done = Here(plan.fingerprint(run()), deleted=False)
    assert plan.decide_run(run(), None) is Deed.COPY
    assert plan.decide_run(run(), done) is Deed.COMPARE_FILES
    assert plan.decide_run(run(), Here("", deleted=False)) is Deed.UPDATE  # broken off half-way
    for changed in (run(status="FAILED"), run(tags={"a": "b"}), run(metrics={"loss": Point(1, 2, 3.0)})):
        assert plan.decide_run(changed, done) is Deed.UPDATE


def test_what_was_deleted_here_stays_so() -> None:
    gone = Here(plan.fingerprint(run()), deleted=True)
    assert plan.decide_run(run(), gone) is Deed.LEAVE
    there_too = run(deleted=True)
    assert plan.decide_run(there_too, Here(plan.fingerprint(there_too), deleted=True)) is Deed.COMPARE_FILES


@pytest.mark.parametrize(
    ("changes", "late"),
    [
        ({"status": "RUNNING", "end_ms": None}, True),
        ({"status": "FINISHED", "end_ms": None}, True),
        ({"end_ms": 1_000}, True),
        ({"end_ms": -100_000_000}, False),
    ],
)
def test_points_of_runs_that_have_not_ended_long_ago_are_looked_at_again(changes: dict[str, Any], late: bool) -> None:
    assert plan.may_have_late_points(run(**changes), 2_000) is late


def test_where_a_folder_lies_does_not_change_a_run() -> None:
    assert plan.fingerprint(run(files=Owner("run", ID, "/a"))) == plan.fingerprint(run(files=Owner("run", ID, "/b")))


def test_ids_of_mlflow_are_kept_and_others_become_the_same_one_each_time() -> None:
    assert plan.kept_run_id(ID) == ID
    assert plan.kept_model_id(MODEL) == MODEL
    other = plan.kept_run_id("r-bcdfghjkmn")
    assert other == plan.kept_run_id("r-bcdfghjkmn")
    assert len(other) == 32
    tags = plan.tags_of(run(id="r-bcdfghjkmn", tags={"mlflow.parentRunId": "r-22222bbbbb"}), "http://there")
    assert tags == {
        "mlflow.parentRunId": plan.kept_run_id("r-22222bbbbb"),
        plan.SOURCE_TAG: "http://there",
        plan.RUN_TAG: "r-bcdfghjkmn",
    }


def test_only_points_that_are_missing_are_sent_and_each_once() -> None:
    nan, inf = Point(1, 5, math.nan), Point(2, 5, math.inf)
    there = [nan, Point(0, 5, 0.1), inf, Point(0, 5, 0.1), Point(0, 6, 0.1)]
    assert plan.missing_points(there, [Point(1, 5, math.nan), Point(0, 5, 0.1)]) == [Point(0, 6, 0.1), inf]
    assert plan.missing_points(there, there) == []


def test_files_are_told_by_name_and_size() -> None:
    there = [File("a", 1), File("b", 2), File("c", None), File("d", None)]
    assert plan.missing_files(there, {"a": 1, "b": 1, "d": 9}) == [File("b", 2), File("c", None)]


def test_experiments_are_chosen_by_name() -> None:
    found = [Experiment(id="1", name="a"), Experiment(id="2", name="b")]
    assert plan.choose_experiments(found, ()) == (found, [])
    assert plan.choose_experiments(found, ("b", "c")) == ([found[1]], ["c"])


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (f"runs:/{ID}/model", f"runs:/{ID}/model"),
        (f"models:/{MODEL}", f"models:/{MODEL}"),
        ("s3://bucket/1/run/artifacts/model", "mlflow-artifacts:/7/run/artifacts/model"),
        ("s3://bucket/1/run/artifacts", "mlflow-artifacts:/7/run/artifacts"),
        (f"/moved/mlruns/1/{ID}/artifacts/model", "mlflow-artifacts:/7/run/artifacts/model"),
        ("s3://bucket/elsewhere", "s3://bucket/elsewhere"),
        ("s3://bucket/1/run/artifacts-of-others", "s3://bucket/1/run/artifacts-of-others"),
        ("s3://models/m", "mlflow-artifacts:/7/models/m"),
        ("models:/other/3", "models:/other/3"),
        ("prompt-template", "prompt-template"),
        ("/home/me/model", None),
        ("file:///home/me/model", None),
        ("mlflow-artifacts:/1/unknown/artifacts/model", None),
    ],
)
def test_sources_of_versions_follow_their_files(source: str, wanted: str | None) -> None:
    places = Places()
    places.add_run(run(artifact_uri="s3://bucket/1/run/artifacts"), "mlflow-artifacts:/7/run/artifacts")
    model = LoggedModel(
        id=MODEL,
        name="m",
        status="READY",
        created_ms=1,
        updated_ms=1,
        artifact_uri="s3://models/m/",
        files=Owner("model", MODEL),
    )
    places.add_model(model, "mlflow-artifacts:/7/models/m")
    assert places.source_of(Version(version=1, source=source)) == wanted


def test_aliases_that_were_moved_on_here_stay() -> None:
    there = registered(aliases={"champion": 2, "new": 1, "same": 1, "mine": 2, "later": 3})
    here = registered(aliases={"champion": 1, "same": 1, "mine": 9})
    assert plan.decide_aliases(there, {1, 2}, here) == [("champion", 2), ("new", 1)]
    mark = {MARK_TAG: plan.model_mark(there, {1, 2}, here)}
    changed = registered(tags=mark, aliases={"champion": 1, "same": 2})  # and others were removed
    assert plan.decide_aliases(there, {1, 2, 3}, changed) == [("later", 3)]
    there = registered(aliases={"champion": 3, "same": 1})
    assert plan.decide_aliases(there, {1, 2, 3}, changed) == [("champion", 3)]


def test_copies_of_versions_come_after_what_they_are_copies_of() -> None:
    def version(name: str, number: int, source: str) -> tuple[str, Version]:
        return name, Version(version=number, source=source)

    found = plan.in_order(
        [
            version("alpha", 1, "models:/mid/2"),
            version("alpha", 2, "models:/elsewhere/1"),
            version("loop", 1, "models:/loop/2"),
            version("loop", 2, "models:/loop/1"),
            version("mid", 2, "models:/zeta/1"),
            version("zeta", 1, f"runs:/{ID}/m"),
        ]
    )
    order = [(name, one.version) for name, one in found]
    assert order.index(("zeta", 1)) < order.index(("mid", 2)) < order.index(("alpha", 1))
    assert len(order) == 6


def test_an_alias_whose_version_fails_to_come_once_is_known_all_the_same() -> None:
    there = registered(aliases={"champion": 1})
    here = registered(tags={MARK_TAG: plan.model_mark(there, {1}, None)}, aliases={"champion": 2})
    assert plan.model_mark(there, set(), here) == here.tags[MARK_TAG]


def test_tags_of_an_experiment_that_were_changed_here_stay() -> None:
    there = {"team": "eyes", "note": "old"}
    first = plan.experiment_tags(there, {})
    assert list(first) == ["team", "note", MARK_TAG]
    here = {**first, "note": "ours"}
    assert plan.experiment_tags(there, here) == {}
    assert plan.experiment_tags({**there, "team": "ears"}, here).keys() == {"team", MARK_TAG}
    assert "note" not in plan.experiment_tags(there, {"note": "made here"})
