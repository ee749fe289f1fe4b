"""Our own words for searches that cannot be read."""

from __future__ import annotations

import pytest

from windlass.core.errors import InvalidInput
from windlass.runs.search import read_filter
from windlass.runs.searchwords import explain_unreadable


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("metrics.loss < 1 or metrics.acc > 2", "no `or`"),
        ("state = succeeded", "write state = 'succeeded', not state = succeeded"),
        ("metrics.loss < 1 and params.lr=0.1", "write params.lr= '0.1', not params.lr= 0.1"),
        ("params.`batch size` != 32", "write params.`batch size` != '32'"),
        ("name like x%", "write name like 'x%'"),
    ],
)
def test_usual_mistakes_are_named(where: str, told: str) -> None:
    error = explain_unreadable(where)
    assert error is not None
    assert told in error.message


@pytest.mark.parametrize("where", [None, "name = 'this or that'", "state in ('a', 'b')", "params.lr is null"])
def test_nothing_is_said_of_what_is_none(where: str | None) -> None:
    assert explain_unreadable(where) is None


def test_what_else_is_wrong_is_told_with_an_example() -> None:
    with pytest.raises(InvalidInput, match="Invalid clause") as raised:
        read_filter("metrics.loss <")
    assert "joined by `and`" in (raised.value.hint or "")
