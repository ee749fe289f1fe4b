"""Names of columns: one set for searches, orders and tables."""

from __future__ import annotations

import pytest

from windlass.core.errors import InvalidInput
from windlass.wire.search import column_of


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("cost", "cost_usd"),
        ("cost_usd", "cost_usd"),
        ("submitted", "submitted_at"),
        ("duration", "duration_s"),
        ("group", "tags.group"),
        ("metric.loss", "metrics.loss"),
        ("params.`batch size`", "params.batch size"),
        ("metrics.a.b", "metrics.a.b"),
    ],
)
def test_what_a_name_means(name: str, column: str) -> None:
    assert column_of(name) == column


@pytest.mark.parametrize(("name", "told"), [("cots", "did you mean 'cost'"), ("foo", "known: attempts, cost")])
def test_the_nearest_is_named_for_what_is_no_column(name: str, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        column_of(name)
