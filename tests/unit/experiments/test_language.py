from __future__ import annotations

import time

import pytest

from windlass.core.errors import InvalidInput
from windlass.experiments.language import Name, parse_filter, parse_order
from windlass.experiments.runsearch import search_query
from windlass.experiments.types import View


@pytest.mark.parametrize(
    ("text", "kind", "key", "op", "value"),
    [
        ("metrics.loss < 0.1", "metrics", "loss", "<", "0.1"),
        ("metrics.loss>-1e-3", "metrics", "loss", ">", "-1e-3"),
        ("params.lr='0.1'", "params", "lr", "=", "'0.1'"),
        ('params."batch size" != "32"', "params", "batch size", "!=", '"32"'),
        ("tags.`mlflow.user` like 'a%'", "tags", "mlflow.user", "LIKE", "'a%'"),
        ("tag.mlflow.user ILIKE 'A'", "tag", "mlflow.user", "ILIKE", "'A'"),
        ("attributes.`Run name` = 'x'", "attributes", "Run name", "=", "'x'"),
        ("`run name` = 'x'", None, "run name", "=", "'x'"),
        ("status <> 'FAILED'", None, "status", "!=", "'FAILED'"),
        ("run_id IN ('a', 'b')", None, "run_id", "IN", "('a', 'b')"),
        ("run_id not in ('a')", None, "run_id", "NOT IN", "('a')"),
        ("metrics.m/0 = 1", "metrics", "m/0", "=", "1"),
    ],
)
def test_a_comparison_is_read(text: str, kind: str | None, key: str, op: str, value: str) -> None:
    [clause] = parse_filter(text)
    assert clause.name == Name(kind=kind, key=key)
    assert clause.op == op
    assert clause.value is not None
    assert clause.value.text == value


def test_comparisons_are_joined_by_and() -> None:
    found = parse_filter("params.a = 'x AND y' and metrics.b >= 3 AND tags.c IS NOT NULL AND tags.d IS NULL")
    assert [(clause.name.key, clause.op) for clause in found] == [
        ("a", "="),
        ("b", ">="),
        ("c", "IS NOT NULL"),
        ("d", "IS NULL"),
    ]
    assert found[0].words("parameter") == "x AND y"
    assert found[1].number("metric") == 3


@pytest.mark.parametrize("text", [None, "", "  "])
def test_no_filter_has_no_clauses(text: str | None) -> None:
    assert parse_filter(text) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("params.a = 'x' OR params.b = 'y'", "Invalid clause"),
        ("params.a = 'x' params.b = 'y'", "Invalid clause"),
        ("params.a", "Invalid clause"),
        ("params.a = 'x' AND", "Invalid clause"),
        ("AND", "Invalid clause"),
        ("params.a =", "Invalid clause"),
        ("params.a ? 'x'", "Invalid clause"),
        ("5 = metrics.a", "Invalid comparison clause"),
        ("'a' = 'b'", "Invalid comparison clause"),
        ("params.a = 'x'; params.b = 'y'", "multiple expression"),
    ],
)
def test_what_is_no_list_of_comparisons_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse_filter(text)


def test_values_are_of_the_wanted_kind() -> None:
    [clause] = parse_filter("metrics.a = 'x'")
    with pytest.raises(InvalidInput, match=r"Expected numeric value type for metric\. Found 'x'"):
        clause.number("metric")
    [clause] = parse_filter("params.a = 1")
    with pytest.raises(InvalidInput, match="Expected a quoted string value for parameter"):
        clause.words("parameter")
    [clause] = parse_filter("params.a = x")
    with pytest.raises(InvalidInput, match="not quoted"):
        clause.words("parameter")


@pytest.mark.parametrize(
    ("text", "items"), [("('a')", ("a",)), ("('a', \"b,c\",'d')", ("a", "b,c", "d")), ("('a',)", ("a",))]
)
def test_a_list_has_quoted_items(text: str, items: tuple[str, ...]) -> None:
    [clause] = parse_filter(f"run_id IN {text}")
    assert clause.items() == items


@pytest.mark.parametrize(
    ("text", "message"), [("()", "empty list"), ("(1, 2)", "different type"), ("('a' 'b')", "ill")]
)
def test_other_lists_are_refused(text: str, message: str) -> None:
    [clause] = parse_filter(f"run_id IN {text}")
    with pytest.raises(InvalidInput, match=message):
        clause.items()


@pytest.mark.parametrize(
    ("text", "kind", "key", "ascending"),
    [
        ("metrics.x", "metrics", "x", True),
        ("metrics.x DESC", "metrics", "x", False),
        ("tags.`a b` asc", "tags", "a b", True),
        ('params."a b"  desc', "params", "a b", False),
        ("attributes.Created DESC", "attributes", "Created", False),
        ("start_time", None, "start_time", True),
    ],
)
def test_an_order_is_read(text: str, kind: str | None, key: str, ascending: bool) -> None:
    assert parse_order(text) == (Name(kind=kind, key=key), ascending)


@pytest.mark.parametrize("text", ["", "metrics.x up", "metrics.x ASC DESC", "metrics.x, metrics.y", "= 3"])
def test_other_orders_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="order_by clause"):
        parse_order(text)


def test_names_keep_their_dots() -> None:
    assert parse_order("metrics.a..b. desc") == (Name(kind="metrics", key="a..b."), False)
    assert parse_filter("metrics.1a.2 > 3")[0].name == Name(kind="metrics", key="1a.2")


@pytest.mark.parametrize("part", [".a", ".", ".'a'", "'\\'.\".'.\".", "1", " "])
def test_what_cannot_be_read_is_refused_at_once(part: str) -> None:
    began = time.process_time()
    for text in (f"metrics{part * 100}!", f"{part * 100}x!"):
        with pytest.raises(InvalidInput):
            parse_order(text)
        with pytest.raises(InvalidInput):
            parse_filter(f"{text} 1 2")
    assert time.process_time() - began < 2  # where each part can be read in two ways this is 2 ** 100


def test_texts_may_not_be_of_any_length() -> None:
    with pytest.raises(InvalidInput, match="filter of 100,005 characters is too long; it may have 100,000"):
        parse_filter("a = '" + "x" * 99_999 + "'")
    with pytest.raises(InvalidInput, match="order_by clause of 1,001 characters is too long"):
        parse_order("a" * 1_001)


@pytest.mark.parametrize(
    ("text", "number"),
    [("9223372036854775807", 2**63 - 1), ("9223372036854775808", 2.0**63), ("-1" + "0" * 400, float("-inf"))],
)
def test_numbers_are_such_as_databases_know(text: str, number: float) -> None:
    [clause] = parse_filter(f"metrics.a < {text}")
    assert (clause.number("metric"), type(clause.number("metric"))) == (number, type(number))


def test_a_search_has_so_many_orders_at_most() -> None:
    order = [f"metrics.a{number}" for number in range(20)]
    search_query(experiments=[0], filter=None, order=order, view=View.ALL, dialect="sqlite")
    with pytest.raises(InvalidInput, match="`order_by` has 21 clauses; it may have 20"):
        search_query(experiments=[0], filter=None, order=[*order, "metrics.b"], view=View.ALL, dialect="sqlite")
