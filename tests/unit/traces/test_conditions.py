"""Which searches are understood, and in which words the others are refused."""

from __future__ import annotations

import math

import pytest

from windlass.core.errors import InvalidInput
from windlass.traces.conditions import Condition, Order, read_conditions, read_orders
from windlass.traces.correlation import Counts, correlate


def condition(entity: str, key: str, comparator: str, value: object) -> Condition:
    return Condition(entity=entity, key=key, comparator=comparator, value=value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name = 'a'", condition("tag", "mlflow.traceName", "=", "a")),
        ("trace.status != 'OK'", condition("attribute", "status", "!=", "OK")),
        ("`timestamp` >= 1", condition("attribute", "timestamp_ms", ">=", 1)),
        ('run_id = "r"', condition("request_metadata", "mlflow.sourceRun", "=", "r")),
        ("metadata.`a.b` LIKE '%x'", condition("request_metadata", "a.b", "LIKE", "%x")),
        ("tags.region IS NOT NULL", condition("tag", "region", "IS NOT NULL", None)),
        ("trace.text ILIKE '%x%'", condition("span", "content", "ILIKE", "%x%")),
        ('span.type NOT IN ("LLM", "TOOL")', condition("span", "type", "NOT IN", ("LLM", "TOOL"))),
        ('span.attributes.model RLIKE "^a"', condition("span", "attributes.model", "RLIKE", "^a")),
        ("feedback.score > 0.5", condition("feedback", "score", ">", 0.5)),
        ("issue.id = 'iss-1'", condition("issue", "id", "=", "iss-1")),
    ],
)
def test_filters_are_read(text: str, expected: Condition) -> None:
    assert read_conditions(text) == [expected]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("invalid", r"Invalid clause\(s\) in filter string"),
        ("foo.bar = 'x'", "Invalid entity type 'foo'"),
        ("invalid = 'foo'", "Invalid attribute key 'invalid'"),
        ("trace.status < 'OK'", "Invalid comparator '<'"),
        ("name IN ('a', 'b')", "Invalid comparator 'IN'"),
        ("span.duration = '1'", "Invalid span attribute 'duration'. Supported attributes: name, status, type"),
        ("span.content = 'x'", "span.content comparator '=' not one of"),
        ("feedback.score > 'high'", "Expected a numeric value for feedback"),
        ("feedback.score = 3", "Expected a quoted string value for feedback"),
        ("status = OK", "not quoted"),
        ("prompt != 'a/1'", "Invalid comparator '!=' for prompts filter"),
        ("prompt = 'a'", "Invalid prompts filter value 'a'"),
        ("name RLIKE '(?<x'", "is no regular expression"),
        (f"tag.a RLIKE '{'a' * 501}'", "at most 500 characters"),
    ],
)
def test_other_filters_are_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        read_conditions(text)


def test_orders_are_read() -> None:
    assert read_orders(["timestamp", "tag.fruit DESC"]) == [
        Order(entity="attribute", key="timestamp_ms", ascending=True),
        Order(entity="tag", key="fruit", ascending=False),
    ]
    with pytest.raises(InvalidInput, match="duplicate"):
        read_orders(["timestamp", "timestamp_ms DESC"])


def test_filters_that_match_the_same_go_together() -> None:
    assert correlate(Counts(total=10, first=5, second=5, both=5)).npmi == pytest.approx(1.0)
    assert correlate(Counts(total=10, first=5, second=5, both=0)).npmi == -1.0
    assert math.isnan(correlate(Counts(total=10, first=0, second=5, both=0)).npmi)
    assert correlate(Counts(total=100, first=50, second=50, both=25)).npmi == pytest.approx(0.0)
