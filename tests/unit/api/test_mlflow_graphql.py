from __future__ import annotations

import math

import pytest

from windlass.api.mlflow.graphql import Variable, check_size, filled, parse, project, snake
from windlass.core.errors import InvalidInput


def test_a_question_is_read() -> None:
    document = parse("""
        # of a page
        query Ask($id: String! = "x", $ids: [String!]) @component(name: "Test") {
            mine: mlflowGetRun(input: {runId: $id, deep: [1, -2.5, true, null, ENUM, "a\\"b\\u0041"]}) {
                run { ...Named info { runId } ... on Run { data { tags { key } } } }
            }
        }
        fragment Named on Run { info { runName } }
    """)
    [root] = document.chosen("Ask")
    assert (root.name, root.alias) == ("mlflowGetRun", "mine")
    given = filled(root.arguments, {"id": "r1"})
    assert given == {"input": {"runId": "r1", "deep": [1, -2.5, True, None, "ENUM", 'a"bA']}}
    assert root.arguments["input"]["runId"] == Variable(name="id")
    [run] = document.fields(root.within)
    assert [one.name for one in document.fields(run.within)] == ["info", "info", "data"]


@pytest.mark.parametrize(
    "text",
    ["", "query {", "query { a(b: }", "query { a ? }", "nonsense", "query { a(", "query Q($a: Int", "{ a { } } }"],
)
def test_what_is_no_question_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse(text).chosen(None)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{" + " ".join(f"a{n}: test" for n in range(11)) + "}", "at most 10 root fields"),
        ("{ a { " + " ".join(f"a{n}: b" for n in range(11)) + "} }", "at most 10 aliases"),
        ("{ a " * 11 + "}" * 11, "maximum depth of 10"),
        ("{ a { " + " ".join(f"f{n}" for n in range(1_001)) + "} }", "maximum total selections of 1000"),
        (
            "{ ...F0 } " + " ".join(f"fragment F{n} on Q {{ ...F{n + 1} ...F{n + 1} }}" for n in range(40)),
            "maximum total selections of 1000",
        ),
        (
            "{ ...F0 } " + " ".join(f"fragment F{n} on Q {{ ...F{n + 1} }}" for n in range(900)),
            "maximum depth of 50 fragments",
        ),
        ("{" + "... { " * 60 + "a" + "}" * 61, "maximum depth of 50 fragments"),
        ("{ a " * 5_000, "maximum depth of 10|Unexpected <EOF>"),
    ],
)
def test_questions_that_ask_for_too_much_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        check_size(parse(text))


def test_a_fragment_that_contains_itself_ends() -> None:
    document = parse("query { ...A } fragment A on Q { test ...A }")
    assert [one.name for one in document.chosen(None)] == ["test"]
    check_size(document)


def test_answers_have_the_wanted_fields_and_names() -> None:
    document = parse("{ run { info { id: runId endTime status } data { metrics { value step } params { key } } } }")
    [root] = document.chosen(None)
    info = {"run_id": "r1", "status": "RUNNING", "more": 1}
    metrics = [{"value": "NaN", "step": 3}, {"value": math.nan, "step": 0}, {"value": 0.5, "step": 1}]
    assert project(document, root, {"info": info, "data": {"metrics": metrics}}) == {
        "info": {"id": "r1", "endTime": "0", "status": "RUNNING"},
        "data": {
            "metrics": [{"value": None, "step": "3"}, {"value": None, "step": "0"}, {"value": 0.5, "step": "1"}],
            "params": [],
        },
    }
    assert snake("experimentIds") == "experiment_ids"
