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
