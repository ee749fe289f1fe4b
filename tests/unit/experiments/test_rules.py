from __future__ import annotations

import pytest

from windlass.core.errors import InvalidInput
from windlass.experiments.rules import (
    check_batch,
    check_experiment_name,
    check_experiment_tag,
    check_max_results,
    check_metric,
    check_metrics,
    check_model_name,
    check_views,
    checked_param,
    checked_tag,
    experiment_number,
)
from windlass.experiments.types import Metric, Pair


@pytest.mark.parametrize("name", ["loss", "a/b", "a b", "a.b-c_d:e", "x" * 250, "ä"])
def test_names_that_may_be(name: str) -> None:
    check_metric(Metric(name, 1.0, 0, 0))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../a", r"parameter 'metrics\[1\].name' supplied: Names may be treated as files"),
        ("a//b", "would resolve to 'a/b'"),
        ("", "would resolve to '.'"),
        ("/a", "treated as files"),
        ("a?b", "Names may only contain"),
        ("x" * 251, "'Metric name' exceeds the maximum length of 250 characters"),
    ],
)
def test_names_that_may_not(name: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        check_metric(Metric(name, 1.0, 0, 0), "metrics[1]")


def test_times_are_not_before_the_epoch() -> None:
    with pytest.raises(InvalidInput, match="parameter 'timestamp' supplied"):
        check_metric(Metric("a", 1.0, -1, 0))


@pytest.mark.parametrize("bad", [Metric("a?b", 1.0, 0, 0), Metric("x" * 251, 1.0, 0, 0), Metric("a", 1.0, -1, 0)])
def test_a_batch_is_refused_in_the_words_of_its_bad_metric(bad: Metric) -> None:
    good = Metric("a", 1.0, 0, 0)
    check_metrics([good, good])
    with pytest.raises(InvalidInput) as alone:
        check_metric(bad, "metrics[1]")
    with pytest.raises(InvalidInput) as found:
        check_metrics([good, bad, good])
    assert str(found.value) == str(alone.value)


def test_values_that_are_too_long_are_cut() -> None:
    assert len(checked_param(Pair("p", "x" * 7_000)).value) == 6_000
    assert len(checked_tag(Pair("t", "x" * 9_000)).value) == 8_000


def test_values_that_are_too_long_are_refused_where_that_is_wanted() -> None:
    assert checked_param(Pair("p", "x" * 6_000), cut=False).value == "x" * 6_000
    assert checked_tag(Pair("t", "x" * 8_000), cut=False).value == "x" * 8_000
    with pytest.raises(InvalidInput, match=r"^'Param value' exceeds the maximum length of 6000 characters$"):
        checked_param(Pair("p", "x" * 6_001), cut=False)
    with pytest.raises(InvalidInput, match=r"^'tags\[3\]\.value' exceeds the maximum length of 8000 characters$"):
        checked_tag(Pair("t", "x" * 8_001), "tags[3]", cut=False)


def test_batches_are_bounded() -> None:
    metrics = [Metric("m", 1.0, 0, step) for step in range(1_000)]
    pairs = [Pair(f"k{number}", "") for number in range(100)]
    check_batch(metrics, (), ())
    check_batch((), pairs, pairs)
    for given, message in (
        ((metrics * 2, (), ()), "at most 1000 metrics"),
        (((), [*pairs, Pair("more", "")], ()), "at most 100 params"),
        (((), (), [*pairs, Pair("more", "")]), "at most 100 tags"),
        ((metrics, pairs, ()), "metrics, params, and tags"),
        (((), [Pair("a", "1"), Pair("a", "1")], ()), r"Duplicate parameter keys have been submitted: \['a'\]"),
    ):
        with pytest.raises(InvalidInput, match=message):
            check_batch(*given)


def test_other_limits() -> None:
    check_experiment_name("x" * 500)
    check_model_name(None)
    check_max_results(50_000)
    check_views({f"mlflow.customView.view{number}" for number in range(50)})
    for refused in (
        lambda: check_experiment_name(" "),
        lambda: check_experiment_name("x" * 501),
        lambda: check_model_name("a/b"),
        lambda: check_model_name(""),
        lambda: check_max_results(0),
        lambda: check_max_results(50_001),
        lambda: check_views({f"mlflow.customView.view{number}" for number in range(51)}),
        lambda: experiment_number("first"),
        lambda: experiment_number("9" * 30),
    ):
        with pytest.raises(InvalidInput):
            refused()
    assert [experiment_number(one) for one in ("", "0", "12", 7)] == [0, 0, 12, 7]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("archivalRetention", "30d", "must be encoded as a JSON object"),
        ("archivalRetention", "[]", "must be encoded as a JSON object"),
        ("archivalRetention", '{"value": "30d"}', "must use type 'duration'"),
        ("archivalRetention", '{"type": "duration"}', "must be in the form"),
        ("archivalRetention", '{"type": "duration", "value": "30 days"}', "must be in the form"),
        ("archivalRetention", '{"type": "duration", "value": "%sd"}' % ("9" * 40), "at most 32 characters"),
        ("archiveNow", '{"older_than": "0d"}', "must be in the form"),
        ("archiveNow", '{"older_than": 3}', "must be in the form"),
    ],
)
def test_an_age_at_which_traces_are_archived_is_one(key: str, value: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        check_experiment_tag(Pair(f"mlflow.trace.{key}", value))


@pytest.mark.parametrize(
    ("key", "value"),
    [("archivalRetention", '{"type": "duration", "value": "30d"}'), ("archiveNow", "{}"), ("another", "30d")],
)
def test_ages_that_are_fine(key: str, value: str) -> None:
    check_experiment_tag(Pair(f"mlflow.trace.{key}", value))
