"""Runs as tables of other tools."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from windlass.client.tables import data_frame, write_parquet
from windlass.core.errors import InvalidInput
from windlass.wire.search import FoundRun


def run(number: int, started: float | None, ended: float | None = None) -> FoundRun:
    return FoundRun(
        id=f"r{number}",
        name="n",
        state="succeeded",
        project="p",
        started_at=started,
        ended_at=ended,
        params={},
        metrics={},
        tags={},
    )


def test_a_time_that_no_calendar_has_costs_no_table() -> None:
    wild = float(time.time_ns())
    found = [run(1, 1_700_000_000.1234, 1_700_000_001.7), run(2, wild, wild), run(3, -wild), run(4, None)]
    frame = data_frame(found)
    assert [str(value) for value in frame["started_at"]] == ["2023-11-14 22:13:20.123000+00:00", "NaT", "NaT", "NaT"]
    assert list(frame["duration_s"])[:2] == [1.577, 0.0]


@pytest.mark.parametrize("times", [[None], [1e18]])
def test_a_table_without_any_time_is_one_too(times: list[float | None]) -> None:
    frame = data_frame([run(number, at) for number, at in enumerate(times)])
    assert list(frame["started_at"].isna()) == [True]
    assert len(data_frame([])) == 0


@pytest.mark.parametrize("place", ["absent/x.parquet", "."])
def test_a_file_that_cannot_be_written_is_said(place: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be written"):
        write_parquet([run(1, None)], str(tmp_path / place))
