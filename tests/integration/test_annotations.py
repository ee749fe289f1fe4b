"""Notes, tags, groups and saved views: over HTTP, as the command line shows them, and as MLflow's clients do."""

from __future__ import annotations

from typing import Any

import pytest
from httpx import Client

from tests.integration.api_calls import error_of, submit

NOTE = "mlflow.note.content"


def tags_of(api: Client, run_id: str) -> dict[str, str]:
    run = api.get("/api/2.0/mlflow/runs/get", params={"run_id": run_id}).json()["run"]
    return {tag["key"]: tag["value"] for tag in run["data"]["tags"]}


def found(api: Client, where: str | None = None, **query: Any) -> list[str]:
    answer = api.get("/api/search", params={"where": where, **query})
    assert answer.status_code == 200, answer.text
    return [run["name"] for run in answer.json()["runs"]]


def test_a_note_is_what_mlflow_calls_a_description(api: Client) -> None:
    run_id = submit(api, name="one")["id"]
    assert api.get(f"/api/runs/{run_id}/note").json() == {"of": run_id, "text": None}
    api.post("/api/runs/one/note", json={"text": "too *hot*"})
    assert tags_of(api, run_id)[NOTE] == "too *hot*"
    assert api.get(f"/api/runs/{run_id}").json()["note"] == "too *hot*"
    assert NOTE not in api.get(f"/api/runs/{run_id}").json()["tags"]
    api.post("/api/2.0/mlflow/runs/set-tag", json={"run_id": run_id, "key": NOTE, "value": "cooler"})
    assert api.get(f"/api/runs/{run_id}/note").json()["text"] == "cooler"
    assert found(api, "note like 'cool%'") == ["one"]
    other = submit(api, name="two")["id"]
    topics = api.get("/api/compare", params={"run": [run_id, other]}).json()["topics"]
    [row] = [row for topic in topics for row in topic["rows"] if row["key"] == "note"]
    assert row["values"] == ["cooler", None]
    for _ in range(2):  # what is gone can be removed again
        assert api.post(f"/api/runs/{run_id}/note", json={"text": ""}).json()["text"] is None
    assert NOTE not in tags_of(api, run_id)


def test_notes_of_projects_are_those_of_their_experiments(api: Client) -> None:
    refused = error_of(api.post("/api/projects/vision/note", json={"text": "x"}), 404, "not_found")
    assert refused["message"] == "there is no project 'vision'"
    assert api.get("/api/2.0/mlflow/experiments/get-by-name", params={"experiment_name": "vision"}).status_code == 404
    submit(api, project="vision")
    for project, experiment in (("vision", "vision"), ("default", "Default")):
        assert api.get(f"/api/projects/{project}/note").json()["text"] is None
        api.post(f"/api/projects/{project}/note", json={"text": f"about {project}"})
        named = api.get("/api/2.0/mlflow/experiments/get-by-name", params={"experiment_name": experiment}).json()
        assert {"key": NOTE, "value": f"about {project}"} in named["experiment"]["tags"]
        assert api.get(f"/api/projects/{project}/note").json()["text"] == f"about {project}"
        assert api.post(f"/api/projects/{project}/note", json={"text": ""}).json()["text"] is None


def test_tags_are_set_and_removed_on_both_sides(api: Client) -> None:
    run_id = submit(api, tags={"team": "a", "old": "1"})["id"]
    answer = api.post(f"/api/runs/{run_id}/tags", json={"tags": {"team": "b", "old": None, "never": None}})
    assert answer.json() == {"run_id": run_id, "tags": {"team": "b"}}
    assert api.get(f"/api/runs/{run_id}").json()["tags"] == {"team": "b"}
    made = api.post("/api/2.0/mlflow/runs/create", json={"experiment_id": "0", "start_time": 1}).json()
    theirs = made["run"]["info"]["run_id"]
    assert api.post(f"/api/runs/{theirs}/tags", json={"tags": {"group": "g"}}).json()["tags"] == {"group": "g"}


@pytest.mark.parametrize(
    ("tags", "rule"), [({"": "x"}, "1 to 250 characters"), ({"a\x00": "x"}, "NUL"), ({"a": "x" * 8001}, "8,000")]
)
def test_tags_that_cannot_be_kept(api: Client, tags: dict[str, str], rule: str) -> None:
    run_id = submit(api)["id"]
    answer = api.post(f"/api/runs/{run_id}/tags", json={"tags": tags})
    assert rule in error_of(answer, 422, "invalid_input")["message"]


def test_runs_of_a_group(api: Client) -> None:
    first = submit(api, name="first", group="sizes")["id"]
    submit(api, name="second", tags=["quick"], group="sizes", project="vision")
    third = submit(api, name="third")["id"]
    assert api.get(f"/api/runs/{first}").json()["tags"] == {"group": "sizes"}
    assert set(found(api, "group = 'sizes'")) == {"first", "second"}
    assert found(api, "group is null") == ["third"]
    api.post(f"/api/runs/{third}/tags", json={"tags": {"group": "other"}})
    listed = {one["name"]: one["runs"] for one in api.get("/api/groups").json()["groups"]}
    assert listed == {"sizes": 2, "other": 1}
    [only] = api.get("/api/groups", params={"project": "vision"}).json()["groups"]
    assert (only["name"], only["runs"]) == ("sizes", 1)
    default = api.get("/api/groups", params={"project": "default"}).json()["groups"]
    assert {one["name"] for one in default} == {"sizes", "other"}
    answer = api.post(f"/api/runs/{third}/tags", json={"tags": {"group": None}, "where": {"group": "sizes"}})
    assert "its tag 'group' is 'other'" in error_of(answer, 409, "conflict")["message"]
    assert found(api, "group = 'other'") == ["third"]
    answer = api.post(f"/api/runs/{third}/tags", json={"tags": {"group": None}, "where": {"group": "other"}})
    assert answer.json()["tags"] == {}
    answer = api.post(f"/api/runs/{third}/tags", json={"tags": {"group": ""}})
    assert "not empty" in error_of(answer, 422, "invalid_input")["message"]
    answer = api.post("/api/runs", json={"spec": {"command": "true", "group": "a", "tags": {"group": "b"}}})
    assert "give one of them" in error_of(answer, 422, "invalid_spec")["message"]


def test_a_saved_view_is_searched_by_everybody(api: Client) -> None:
    submit(api, name="b", project="vision", params={"lr": 2})
    submit(api, name="a", project="vision", params={"lr": 1})
    submit(api, name="c", params={"lr": 1})
    wanted = {"where": "params.lr like '_'", "order": ["name"], "columns": ["params.lr"]}
    saved = api.post("/api/views/all", json=wanted)
    assert saved.status_code == 200, saved.text
    assert found(api, view="all") == ["a", "b", "c"]
    assert found(api, "params.lr = '1'", view="all") == ["a", "c"]
    api.post("/api/views/all", params={"project": "vision"}, json=wanted)
    assert found(api, view="all", project="vision") == ["a", "b"]
    assert found(api, view="all", project="vision", order="name desc") == ["b", "a"]
    assert found(api, view="all") == ["a", "b", "c"]  # that of all runs comes first
    listed = api.get("/api/views").json()["views"]
    assert [(view["name"], view["project"]) for view in listed] == [("all", None), ("all", "vision")]
    assert len(api.get("/api/views", params={"project": "speech"}).json()["views"]) == 1
    assert found(api, view="all", project="default") == ["c"]  # that of all runs, for one project's
    assert api.get("/api/views/all", params={"project": "default"}).json()["project"] is None
    assert api.delete("/api/views/all", params={"project": "default"}).status_code == 404  # it is not default's own
    api.post("/api/views/all", json={"where": "name = 'c'"})
    assert api.get("/api/views/all").json()["where"] == "name = 'c'"
    assert api.delete("/api/views/all").status_code == 204
    assert found(api, view="all") == ["a", "b"]  # the only one of that name
    assert "did you mean 'all'" in error_of(api.get("/api/views/al"), 404, "not_found")["hint"]


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ({"where": "colour = 'red'"}, "unknown name 'colour'"),
        ({"order": ["metrics"]}, "metrics"),
        ({"where": "name = 'a' and"}, ""),
    ],
)
def test_what_cannot_be_searched_is_not_saved(api: Client, body: dict[str, Any], rule: str) -> None:
    assert rule in error_of(api.post("/api/views/x", json=body), 422, "invalid_input")["message"]
    assert api.get("/api/views").json()["views"] == []


def test_names_of_views_may_have_slashes(api: Client) -> None:
    assert api.post("/api/views/a%2Fb", json={}).json()["name"] == "a/b"
    assert api.get("/api/views/a%2Fb").json()["name"] == "a/b"
    assert api.delete("/api/views/a%2Fb").status_code == 204


def test_two_projects_with_a_view_of_one_name(api: Client) -> None:
    for project in ("a", "b"):
        api.post("/api/views/mine", params={"project": project}, json={})
    assert (
        "several projects have a view 'mine': a, b" in error_of(api.get("/api/views/mine"), 409, "ambiguous")["message"]
    )
