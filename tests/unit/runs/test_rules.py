"""Rules over metrics."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from windlass.runs.rules import MOST_FINDINGS, Finding, Value, Watched, judge_silence, judge_values
from windlass.wire.rules import RuleSpec, Then


def rule(**keys: Any) -> RuleSpec:
    return RuleSpec.model_validate(keys)


def values(*numbers: float, name: str = "loss") -> list[Value]:
    return [Value(name, step, 100.0 + step, number) for step, number in enumerate(numbers)]


def found(spec: RuleSpec, *numbers: float) -> list[Finding]:
    return judge_values(spec, Watched(), values(*numbers))[1]


def test_patience_ends_when_nothing_gets_better() -> None:
    spec = rule(metric="loss", patience=3, then="stop")
    assert found(spec, 5, 4, 3, 3.5, 3) == []
    (finding,) = found(spec, 5, 4, 3, 3.5, 3, 3)
    assert finding.message == "loss is no better for 3 values (best: 3 at step 2)"
    assert (finding.step, finding.then) == (5, Then.STOP)


def test_patience_counts_anew_after_something_better_and_says_it_once() -> None:
    spec = rule(metric="loss", patience=2)
    assert [finding.step for finding in found(spec, 5, 6, 6, 6, 4, 6, 6, 6)] == [2, 6]


def test_patience_can_want_more_and_by_how_much() -> None:
    assert found(rule(metric="acc", patience=2, goal="max"), 0.1) == []
    spec = rule(metric="loss", patience=2, min_delta=0.5)
    assert [finding.step for finding in found(spec, 5, 4.9, 4.8, 4.4)] == [2]


def test_no_number_is_nothing_better() -> None:
    (finding,) = found(rule(metric="loss", patience=2), math.nan, math.nan)
    assert "none so far" in finding.message


@pytest.mark.parametrize(("keys", "steps"), [({"above": 3}, [1, 4]), ({"below": 3}, [0, 3])])
def test_a_threshold_is_told_at_each_crossing(keys: dict[str, float], steps: list[int]) -> None:
    assert [finding.step for finding in found(rule(metric="loss", **keys), 2, 4, 5, 1, 6)] == steps


def test_what_is_no_number_is_told_of_any_metric() -> None:
    spec = rule(nan=True)
    points = [*values(1, math.inf, name="grad"), *values(math.nan, name="loss")]
    messages = [finding.message for finding in judge_values(spec, Watched(), points)[1]]
    assert messages == ["grad is inf", "loss is nan"]


def test_each_metric_that_is_no_number_is_told_once() -> None:
    steps = [
        Value(name, step, 0.0, value)
        for step in range(5)
        for name, value in (("loss", math.nan), ("lr", 0.1), ("grad", math.inf if step > 2 else 1.0))
    ]
    findings = judge_values(rule(nan=True), Watched(), steps)[1]
    assert [(finding.message, finding.step) for finding in findings] == [("loss is nan", 0), ("grad is inf", 3)]


def test_a_value_that_goes_to_and_fro_does_not_flood() -> None:
    assert len(found(rule(metric="loss", above=3), *([2.0, 4.0] * 1_000))) == MOST_FINDINGS


def test_earlier_steps_do_not_count() -> None:
    assert [finding.step for finding in found(rule(metric="loss", above=3, after=2), 9, 9, 9)] == [2]


def test_silence_is_told_once_until_something_comes() -> None:
    spec = rule(silent="1m")
    quiet, finding = judge_silence(spec, Watched(), since=0, now=59)
    assert finding is None
    quiet, finding = judge_silence(spec, quiet, since=0, now=60)
    assert finding is not None
    assert finding.message == "no value of any metric for 1m00s"
    assert judge_silence(spec, quiet, since=0, now=90)[1] is None
    heard, _ = judge_values(spec, quiet, [Value("loss", 1, 100.0, 1.0)])
    assert judge_silence(spec, heard, since=0, now=159)[1] is None
    assert judge_silence(spec, heard, since=0, now=160)[1] is not None


@given(
    st.sampled_from([{"patience": 2}, {"above": 1}, {"below": 1}, {"nan": True}, {"silent": 60}]),
    st.lists(st.sampled_from([0.0, 1.0, 2.0, math.nan, math.inf]), max_size=12),
    st.lists(st.integers(0, 12)),
)
def test_it_does_not_matter_how_values_come(keys: dict[str, Any], numbers: list[float], cuts: list[int]) -> None:
    """In one batch or in several, with what was seen kept as JSON in between."""
    spec = rule(metric="loss", **keys)
    whole = judge_values(spec, Watched(), values(*numbers))
    watched, findings = Watched(), []
    edges = sorted({0, *cuts, len(numbers)})
    for start, end in itertools.pairwise(edges):
        watched, some = judge_values(
            spec,
            Watched.from_json(json.loads(json.dumps(watched.as_json(), allow_nan=False))),
            values(*numbers)[start:end],
        )
        findings += some
    assert (watched, findings) == whole


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"metric": "loss"}, "has none"),
        ({"metric": "loss", "above": 1, "below": 0}, "above and below"),
        ({"patience": 3}, "needs a `metric`"),
        ({"metric": "loss", "patience": 0}, "patience"),
        ({"silent": "soon"}, "silent"),
        ({"metric": "loss", "above": "nan"}, "above"),
    ],
)
def test_a_rule_that_is_none_is_refused(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        rule(**keys)
