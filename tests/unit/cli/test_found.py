"""Which columns the table of a search has, and what stands in them."""

from __future__ import annotations

import io
from typing import Any

import pytest

from windlass.cli import found
from windlass.client.tables import rows_of, write_csv
from windlass.wire.search import FoundRun


def run(name: str, **known: Any) -> FoundRun:
    base: dict[str, Any] = {"id": f"r-{name}", "name": name, "state": "failed", "project": "p"}
    return FoundRun(**{**base, "params": {}, "metrics": {}, "tags": {}, **known})


def chosen(runs: list[FoundRun], *named: str) -> list[str]:
    known, rows = rows_of(runs)
    return found.choose_columns(known, rows, named)


TWO = [
    run("a", params={"lr": "1", "path": "x"}, metrics={"loss": 1.0, "acc": 0.5, "system/cpu": 3.0}, cost_usd=0.5),
    run("b", params={"lr": "2", "path": "x"}, metrics={"loss": 2.0}, submitted_at=5.0),
]


def test_metrics_come_before_params_that_differ_and_those_of_machines_not_at_all() -> None:
    assert chosen(TWO) == ["metrics.acc", "metrics.loss", "params.lr", "submitted", "cost"]


def test_what_was_searched_by_comes_first() -> None:
    named = ("metrics.loss", "state", "duration", "metrics.system/cpu")
    assert chosen(TWO, *named)[:3] == ["metrics.loss", "duration", "metrics.system/cpu"]


def test_of_one_run_all_params_are_shown() -> None:
    assert chosen(TWO[:1])[2:4] == ["params.lr", "params.path"]


def test_what_does_not_fit_is_left_out_and_what_was_asked_for_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found, "width_of", lambda _stream: 40)
    table = found.found_table(TWO, [], [], io.StringIO())
    assert table.splitlines()[0].split() == ["ID", "NAME", "STATE", "acc", "loss", "lr"]
    asked = found.found_table(TWO, ["cost", "metrics.loss", "params.path", "submitted"], [], io.StringIO())
    assert asked.splitlines()[0].split()[3:] == ["cost", "loss", "path", "submitted"]
    assert "$0.5000" in asked
    assert "d ago" in asked


def test_csv_is_headed_by_the_names_that_were_asked_for_and_has_dates() -> None:
    out = io.StringIO()
    write_csv([run("a", submitted_at=0.5, started_at=1.0, ended_at=3.0)], out, ["id", "submitted", "duration_s"])
    assert out.getvalue() == "id,submitted,duration_s\nr-a,1970-01-01T00:00:00.500Z,2.0\n"


def test_columns_of_the_same_short_name_are_told_apart() -> None:
    asked = ["metrics.lr", "params.lr", "tags.lr", "metrics.cost", "cost", "params.name", "metrics.loss"]
    expected = ["metrics.lr", "params.lr", "tags.lr", "metrics.cost", "cost", "params.name", "loss"]
    assert found.headers_of(asked) == expected
    both = [run("a", params={"lr": "1"}, metrics={"lr": 0.5})]
    assert found.found_table(both, [], [], io.StringIO()).splitlines()[0].split()[3:] == ["metrics.lr", "params.lr"]
