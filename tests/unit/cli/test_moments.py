"""Moments as people write them."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from windlass.cli.moments import moment
from windlass.core.errors import InvalidInput

NOW = datetime(2026, 11, 15, 14, 30).timestamp()


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("10m", NOW - 600),
        ("14:00", datetime(2026, 11, 15, 14, 0).timestamp()),
        ("14:00:30", datetime(2026, 11, 15, 14, 0, 30).timestamp()),
        ("23:00", datetime(2026, 11, 14, 23, 0).timestamp()),
        ("2026-11-15", datetime(2026, 11, 15).timestamp()),
        ("2026-11-15T09:00", datetime(2026, 11, 15, 9).timestamp()),
        ("2026-11-15T09:00+00:00", datetime.fromisoformat("2026-11-15T09:00+00:00").timestamp()),
    ],
)
def test_ways_to_write_a_moment(text: str, at: float) -> None:
    assert moment("--since", text, now=NOW) == pytest.approx(at)


def test_nothing_is_no_moment_and_now_is_the_usual_one() -> None:
    assert moment("--since", None) is None
    assert moment("--since", "1h") == pytest.approx(time.time() - 3600, abs=60)


@pytest.mark.parametrize("text", ["yesterday", "25:00", "2026-13-01", "", "-5"])
def test_what_is_no_moment_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"--since .* is no time") as caught:
        moment("--since", text, now=NOW)
    assert "14:30" in (caught.value.hint or "")
