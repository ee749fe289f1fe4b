"""Times and durations as protobuf writes them."""

from __future__ import annotations

import pytest

from windlass.api.mlflow.times import read_duration, read_time, render_duration, render_time
from windlass.core.errors import InvalidInput


@pytest.mark.parametrize("text", ["2026-01-31T12:00:00.250Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999Z"])
def test_times_are_read_and_shown(text: str) -> None:
    assert render_time(read_time("at", text)) == text


def test_times_that_no_calendar_has_are_shown_as_the_last_ones() -> None:
    assert render_time(2**62) == "9999-12-31T23:59:59.999Z"
    assert render_time(-(2**62)) == "0001-01-01T00:00:00Z"


@pytest.mark.parametrize("value", ["9999-12-31T23:59:59-05:00", "0001-01-01T00:00:00+01:00", "then", 5, None])
def test_other_times_are_refused(value: object) -> None:
    with pytest.raises(InvalidInput):
        read_time("at", value)


def test_durations_are_read_and_shown() -> None:
    assert render_duration(read_duration("took", "-1.500s")) == "-1.500s"
    for value in ("9" * 30 + "s", "9" * 5000 + "s", "²s", "1", 5):
        with pytest.raises(InvalidInput):
            read_duration("took", value)
