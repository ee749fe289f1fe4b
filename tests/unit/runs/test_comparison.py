"""Runs side by side."""

from __future__ import annotations

import math

from windlass.runs.comparison import RunFacts, Value, compare
from windlass.wire.comparison import ComparedRow, Topic


def facts(name: str, **topics: dict[str, Value]) -> RunFacts:
    return RunFacts(id=f"r-{name}", name=name, state="succeeded", topics={Topic(key): of for key, of in topics.items()})


def rows(*found: RunFacts, everything: bool = False) -> dict[str, ComparedRow]:
    compared = compare(found, everything=everything)
    return {row.key: row for topic in compared.topics for row in topic.rows}


def test_only_what_differs_is_shown_unless_everything_is_asked_for() -> None:
    two = facts("a", params={"lr": "0.1", "depth": "2"}), facts("b", params={"lr": "0.2", "depth": "2", "warm": "3"})
    assert {key: row.values for key, row in rows(*two).items()} == {"lr": ["0.1", "0.2"], "warm": [None, "3"]}
    assert rows(*two, everything=True)["depth"].differs is False


def test_metrics_are_shown_even_if_they_are_equal() -> None:
    assert rows(facts("a", metrics={"loss": 1.0}), facts("b", metrics={"loss": 1.0}))["loss"].differs is False


def test_the_best_of_a_metric_is_known_by_its_name() -> None:
    found = rows(
        facts("a", metrics={"val/loss": 2.0, "top1_accuracy": 0.5, "speed": 3.0}),
        facts("b", metrics={"val/loss": 1.0, "top1_accuracy": 0.4, "speed": 4.0}),
    )
    assert {key: row.best for key, row in found.items()} == {"val/loss": 1, "top1_accuracy": 0, "speed": None}


def test_what_is_no_number_is_told_and_is_never_best() -> None:
    (row,) = rows(
        facts("a", metrics={"loss": math.nan}), facts("b", metrics={"loss": 1.0}), facts("c", metrics={"loss": 2.0})
    ).values()
    assert (row.values, row.best) == (["NaN", 1.0, 2.0], 1)


def test_a_run_of_which_nothing_is_recorded_differs_in_nothing() -> None:
    assert rows(facts("a", environment={"python": "3.11"}), facts("b")) == {}
    three = [
        facts(name, environment={"python": version} if version else {})
        for name, version in (("a", "3.11"), ("b", ""), ("c", "3.12"))
    ]
    assert rows(*three)["python"].values == ["3.11", None, "3.12"]
