"""What can be asked of models and versions, and what is said about the rest."""

from __future__ import annotations

import pytest

from windlass.core.errors import InvalidInput, WindlassError
from windlass.registry.filters import (
    MODELS,
    VERSIONS,
    Clause,
    Order,
    read_filter,
    read_model_orders,
    read_version_orders,
    wants_prompts,
)


def test_clauses_are_joined_by_and() -> None:
    found = read_filter("name like 'a%' AND tags.`my.key` != \"x\" and version_number >= 3", VERSIONS)
    assert found == [
        Clause(is_tag=False, key="name", comparator="LIKE", value="a%"),
        Clause(is_tag=True, key="my.key", comparator="!=", value="x"),
        Clause(is_tag=False, key="version_number", comparator=">=", value=3),
    ]
    assert read_filter("", MODELS) == read_filter("  ", MODELS) == []


def test_lists_are_for_names_and_runs() -> None:
    [clause] = read_filter("run_id IN ('a', 'b')", VERSIONS)
    assert clause.value == ("a", "b")
    [clause] = read_filter("name NOT IN ('a')", MODELS)
    assert (clause.comparator, clause.value) == ("NOT IN", ("a",))
    with pytest.raises(InvalidInput, match="support comparison with a list"):
        read_filter("source_path IN ('a')", VERSIONS)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("name", r"Invalid clause\(s\)"),
        ("name LIKE", r"Invalid clause\(s\)"),
        ("run_id IN (", r"Invalid clause\(s\)"),
        ("name = 'a' OR name = 'b'", r"Invalid clause\(s\)"),
        ("evilhax = true", r"Invalid clause\(s\)"),
        ("tags.a IS NULL", r"Invalid clause\(s\)"),
        ("run_id IN ()", "empty list"),
        ("run_id IN (,)", "ill-formed list"),
        ("run_id IN ('a',,'b')", "ill-formed list"),
        ("run_id IN (1, 2)", "different type in list"),
        ("name = something", "not quoted"),
        ("evilhax = 'a'", "Invalid attribute key 'evilhax' specified"),
        ("metrics.a = 'b'", "Invalid entity type 'metrics'"),
        ("name > 'a'", "Invalid comparator for attribute: >"),
        ("tags.a > 'b'", "Invalid comparator for tag: >"),
        ("tags.a = 3", "Expected a quoted string value for tag"),
        ("name = 3", "support comparison with numeric values"),
        ("version_number LIKE '3'", "Invalid comparator for attribute version_number"),
        ("version_number = 3.5", "Invalid value for numeric attribute"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        read_filter(text, VERSIONS)


def test_numbers_beyond_any_version_are_no_mistake() -> None:
    [clause] = read_filter("version_number < 99999999999999999999", VERSIONS)
    assert clause.value == 2**31 - 1


def test_prompts_are_shown_to_who_asks_for_them() -> None:
    tag = "tags.`mlflow.prompt.is_prompt`"
    assert wants_prompts(read_filter(f"{tag} = 'True'", MODELS))
    assert wants_prompts(read_filter(f"name = 'a' AND {tag} != 'false'", MODELS))
    assert not wants_prompts(read_filter(f"{tag} = 'false'", MODELS))
    assert not wants_prompts(read_filter("tags.other = 'true'", MODELS))


def test_orders_name_columns() -> None:
    assert read_model_orders(["timestamp  desc", "name"]) == [
        Order(key="updated_at", ascending=False),
        Order(key="name", ascending=True),
    ]
    assert read_version_orders(["attribute.version_number DESC"]) == [Order(key="version", ascending=False)]
    with pytest.raises(InvalidInput, match="Invalid order by key 'creation_timestamp' specified"):
        read_model_orders(["name ASC", "creation_timestamp DESC"])
    with pytest.raises(InvalidInput, match="Invalid attribute key 'run_id' specified"):
        read_version_orders(["run_id"])
    with pytest.raises(InvalidInput, match="Invalid order_by clause"):
        read_model_orders(["name DESC blah"])
    with pytest.raises(WindlassError, match="contains duplicate fields"):
        read_model_orders(["timestamp", "last_updated_timestamp DESC"])
