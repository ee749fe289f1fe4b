"""Runs by what is known of them, over HTTP and as tables."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from httpx import Client

from tests.integration.api_calls import error_of, submit
from windlass.client.tables import data_frame, rows_of, write_csv
from windlass.wire.search import FoundPage, FoundRun


def found(api: Client, where: str | None = None, *order: str, **query: Any) -> list[FoundRun]:
    answer = api.get("/api/search", params={"where": where, "order": list(order), **query})
    assert answer.status_code == 200, answer.text
    return FoundPage.model_validate(answer.json()).runs


def names(api: Client, where: str | None = None, *order: str) -> list[str]:
    return [run.name for run in found(api, where, *order)]


def log(api: Client, run_id: str, **values: float) -> None:
    point = {"step": 1, "at": 1_000.0, "values": values}
    sent = api.post(f"/api/runs/{run_id}/metrics", json={"source": "s", "seq": 0, "points": [point]})
    assert sent.is_success, sent.text


@pytest.fixture
def three(api: Client) -> dict[str, str]:
    """One in another project, one that an MLflow client made."""
    ids = {
        "good": submit(api, name="good", params={"lr": 0.1}, tags={"team": "a"})["id"],
        "bad": submit(api, name="bad", params={"lr": 0.2}, project="vision")["id"],
    }
    log(api, ids["good"], loss=0.25)
    log(api, ids["bad"], loss=0.75)
    made = api.post("/api/2.0/mlflow/runs/create", json={"experiment_id": "0", "run_name": "theirs", "start_time": 1})
    ids["theirs"] = made.json()["run"]["info"]["run_id"]
    return ids


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (None, {"good", "bad", "theirs"}),
        ("metrics.loss < 0.5", {"good"}),
        ("params.lr = '0.2'", {"bad"}),
        ("tags.team = 'a' and metrics.loss < 1", {"good"}),
        ("state = 'queued'", {"good", "bad"}),
        ("state in ('running', 'failed')", {"theirs"}),
        ("project = 'vision'", {"bad"}),
        ("project = 'default'", {"good", "theirs"}),
        ("project in ('Default', 'x')", {"good", "theirs"}),
        ("submitted_at > '1h' and cost_usd = 0", {"good", "bad"}),
        ("name like 'g%'", {"good"}),
        ("submitted > '1h'", {"good", "bad"}),
        ("submitted < '1971-01-01'", {"theirs"}),
        ("cost = 0 and attempts = 0", {"good", "bad"}),
        ("params.lr is null", {"theirs"}),
        ("cost < 99999999999999999999 and attempts < 99999999999999999999", {"good", "bad"}),
        ("attempts < 9999999999 and attempts < 0.5 and attempts > -1e999", {"good", "bad"}),
        ("submitted > 99999999999999999999", set()),
        ("metrics.loss < 99999999999999999999", {"good", "bad"}),
        (" and ".join(["metrics.loss < 1"] * 200), {"good", "bad"}),
    ],
)
def test_what_a_search_finds(api: Client, three: dict[str, str], where: str | None, expected: set[str]) -> None:
    assert set(names(api, where)) == expected


def test_a_project_narrows_a_search(api: Client, three: dict[str, str]) -> None:
    assert [run.name for run in found(api, project="vision")] == ["bad"]
    assert found(api, "metrics.loss < 0.5", project="vision") == []
    assert found(api, project="it's nobody's") == []


def test_the_order_can_be_chosen_and_what_lacks_it_comes_last(api: Client, three: dict[str, str]) -> None:
    assert names(api, None, "metrics.loss desc") == ["bad", "good", "theirs"]
    assert names(api, None, "params.lr") == ["good", "bad", "theirs"]
    assert names(api, None, "name") == ["bad", "good", "theirs"]


@pytest.mark.parametrize(
    ("query", "remarks"),
    [
        ({"where": "metrics.los < 1"}, ["no run has a metric 'los'; did you mean 'loss'?"]),
        ({"where": "params.nope = '1'"}, ["no run has a param 'nope'; there are lr"]),
        ({"where": "group = 'g'"}, ["there is no group 'g'"]),
        ({"where": "experiment = 'visoin'"}, ["there is no experiment 'visoin'; did you mean 'vision'?"]),
        ({"project": "visoin"}, ["there is no project 'visoin'; did you mean 'vision'?"]),
        ({"where": "project = 'visoin'"}, ["there is no project 'visoin'; did you mean 'vision'?"]),
        ({"order": "metrics.los"}, ["no run has a metric 'los'; did you mean 'loss'?"]),
        ({"where": "metrics.loss < 0 and project = 'vision'", "order": "cost"}, []),
        ({"where": "params.nope is null"}, []),
    ],
)
def test_names_that_no_run_has_are_told(
    api: Client, three: dict[str, str], query: dict[str, str], remarks: list[str]
) -> None:
    page = FoundPage.model_validate(api.get("/api/search", params=query).json())
    assert page.remarks == remarks


def test_a_search_tells_what_it_is_about(api: Client) -> None:
    where = "metric.loss < 1 and group = 'g' and cost_usd > 0"
    answer = api.get("/api/search", params={"where": where, "order": "params.lr desc"}).json()
    assert answer["named"] == ["metrics.loss", "tags.group", "cost", "params.lr"]


def test_runs_of_mlflows_clients_are_found_by_whatever_names_them(api: Client, three: dict[str, str]) -> None:
    theirs = three["theirs"]
    values = [{"key": "loss", "value": value, "timestamp": 5, "step": step} for step, value in enumerate((1.0, 2.0))]
    body = {"run_id": theirs, "metrics": values, "params": [{"key": "lr", "value": "7"}], "tags": []}
    assert api.post("/api/2.0/mlflow/runs/log-batch", json=body).is_success
    for ref in (theirs, theirs[:9], "theirs"):
        run = FoundRun.model_validate(api.get(f"/api/search/{ref}").json())
        assert (run.id, run.project, run.params, run.metrics) == (theirs, "default", {"lr": "7"}, {"loss": 2.0})
        (series,) = api.get(f"/api/runs/{ref}/metrics").json()["series"]
        assert series["values"] == [1.0, 2.0]
        assert api.get(f"/api/runs/{ref}/chart", params={"name": "loss"}).json()["max"] == [1.0, 2.0]
        assert api.get(f"/api/runs/{ref}/artifacts").json()["run_id"] == theirs
        for rest in ("", "/logs", "/why", "/attempts"):
            told = error_of(api.get(f"/api/runs/{ref}{rest}"), 404, "not_found")
            assert "made by an MLflow client" in told["message"]
    assert api.get("/api/search/good").json()["id"] == three["good"]


def test_all_that_is_known_of_metrics_is_told_of_any_run(api: Client, three: dict[str, str]) -> None:
    values = [{"key": "loss", "value": value, "timestamp": 5, "step": step} for step, value in enumerate((1.0, 2.0))]
    body = {"run_id": three["theirs"], "metrics": values, "params": [], "tags": []}
    assert api.post("/api/2.0/mlflow/runs/log-batch", json=body).is_success
    told = api.get("/api/runs/theirs/metric-summaries").json()
    loss = {"last": 2.0, "step": 1, "min": 1.0, "max": 2.0, "count": 2}
    assert told == {"run_id": three["theirs"], "metrics": {"loss": loss}, "left_out": 0}
    machine = {"step": None, "at": 1_000.0, "values": {"system/cpu_percent": 50.0}}
    api.post(f"/api/runs/{three['good']}/metrics", json={"source": "m", "seq": 0, "points": [machine]})
    told = api.get("/api/runs/good/metric-summaries").json()
    assert (set(told["metrics"]), told["left_out"]) == ({"loss"}, 1)
    assert told["metrics"] == api.get("/api/runs/good").json()["metrics"]
    told = api.get("/api/runs/good/metric-summaries?system=true").json()
    assert (told["metrics"]["system/cpu_percent"]["count"], told["left_out"]) == (1, 0)
    error_of(api.get("/api/runs/nobody/metric-summaries"), 404, "not_found")


def test_a_name_counts_before_the_beginning_of_an_id(api: Client, three: dict[str, str]) -> None:
    for of in (three["good"].removeprefix("r-")[:2], three["theirs"][:2]):
        named = submit(api, name=of)["id"]
        assert api.get(f"/api/runs/{of}").json()["id"] == named


def test_a_name_that_is_longer_is_suggested(api: Client, three: dict[str, str]) -> None:
    submit(api, name="t1-pn9f")
    assert error_of(api.get("/api/runs/t1"), 404, "not_found")["hint"] == "did you mean 't1-pn9f'?"


def test_what_json_has_no_words_for_is_text(api: Client, three: dict[str, str]) -> None:
    body: dict[str, Any] = {"run_id": three["theirs"], "params": [], "tags": []}
    body["metrics"] = [
        {"key": key, "value": value, "timestamp": 5, "step": 0} for key, value in (("a", "NaN"), ("b", "-Infinity"))
    ]
    assert api.post("/api/2.0/mlflow/runs/log-batch", json=body).is_success
    assert api.get("/api/search/theirs").json()["metrics"] == {"a": "NaN", "b": "-Infinity"}
    series = api.get("/api/runs/theirs/metrics").json()["series"]
    assert [one["values"] for one in series] == [["NaN"], ["-Infinity"]]


def test_runs_that_lack_the_value_come_after_those_whose_value_is_no_number(api: Client, three: dict[str, str]) -> None:
    for name, value in (("good", "NaN"), ("theirs", "2")):
        body = {"run_id": three[name], "metrics": [{"key": "m", "value": value, "timestamp": 5, "step": 0}]}
        assert api.post("/api/2.0/mlflow/runs/log-batch", json=body).is_success
    submit(api, name="newest")  # of those that are alike the newest comes first
    for order in ("metrics.m", "metrics.m desc"):
        assert names(api, None, order) == ["theirs", "good", "newest", "bad"]
    for op in ("<", "<=", "=", ">=", ">", "!="):
        assert ("good" in names(api, f"metrics.m {op} 0")) is (op == "!=")


def test_pages_follow_each_other(api: Client, three: dict[str, str]) -> None:
    first = api.get("/api/search", params={"limit": 2, "order": "name"}).json()
    second = api.get("/api/search", params={"limit": 2, "order": "name", "cursor": first["next_cursor"]}).json()
    assert [run["name"] for run in (*first["runs"], *second["runs"])] == ["bad", "good", "theirs"]
    assert second["next_cursor"] is None


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"where": "colour = 'red'"}, "colour"),
        ({"where": "metrics.loss <"}, "Invalid clause"),
        ({"where": "state = 'sucess'"}, "unknown state 'sucess'"),
        ({"where": "state in ('failed', 'succeded')"}, "did you mean 'succeeded'"),
        ({"where": "state = failed"}, "state = 'failed'"),
        ({"where": "state = 'failed' or cost = 0"}, "no `or`"),
        ({"where": "submitted > 'soon'"}, "no time"),
        ({"where": "flavours.x = 'y'"}, "flavours"),
        ({"order": "colour"}, "colour"),
        ({"cursor": "x"}, "token"),
        ({"where": " and ".join(["cost = 0"] * 201)}, "201 comparisons; it may have 200"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_can(api: Client, query: dict[str, str], told: str) -> None:
    assert told in error_of(api.get("/api/search", params=query), 422, "invalid_input")["message"]


def test_a_table_has_a_column_for_each_value(api: Client, three: dict[str, str]) -> None:
    runs = found(api, "metrics.loss < 1", "name")
    columns, rows = rows_of(runs)
    assert columns[-3:] == ["params.lr", "metrics.loss", "tags.team"]
    assert [row["metrics.loss"] for row in rows] == [0.75, 0.25]
    out = io.StringIO()
    write_csv(runs, out, ["name", "params.lr", "tags.team"])
    assert list(csv.reader(io.StringIO(out.getvalue()))) == [
        ["name", "params.lr", "tags.team"],
        ["bad", "0.2", ""],
        ["good", "0.1", "a"],
    ]
    frame = data_frame(runs)
    assert list(frame["name"]) == ["bad", "good"]
    assert str(frame["submitted_at"].dtype).startswith("datetime64")
    assert frame["metrics.loss"].sum() == 1.0
