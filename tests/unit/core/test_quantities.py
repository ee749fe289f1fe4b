from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.quantities import (
    exact_size,
    format_count,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("512", 512),
        ("64GB", 64 * 10**9),
        ("64gb", 64 * 10**9),
        ("64G", 64 * 10**9),
        ("64GiB", 64 * 2**30),
        ("64Gi", 64 * 2**30),
        ("1.5k", 1500),
        (" 2 MB ", 2 * 10**6),
        ("3p", 3 * 10**15),
        (7, 7),
    ],
)
def test_sizes_as_people_write_them(text: str | int, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GB", "64 potatoes", "-1GB", "1..5GB", "1GBB", -1])
def test_what_is_no_size_is_refused_by_name(text: str | int) -> None:
    with pytest.raises(ValueError, match=r"not a size") as refused:
        parse_size(text)
    assert str(text) in str(refused.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("90", 90), ("10m", 600), ("1h30m", 5400), ("2d", 172_800), ("1h 30m 5s", 5405), (1.5, 1.5), (0, 0)],
)
def test_durations_as_people_write_them(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "  ", "soon", "10x", "1m1h", "-5s", "10m ago"])
def test_what_is_no_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration; write for example"):
        parse_duration(text)


@pytest.mark.parametrize("seconds", [-1, 4e9, float("inf"), float("nan"), "99999d"])
def test_durations_have_a_range(seconds: str | float) -> None:
    with pytest.raises(ValueError, match="out of range"):
        parse_duration(seconds)


@given(st.integers(0, 10**18))
def test_a_formatted_size_reads_back_within_its_precision(size_bytes: int) -> None:
    shown = format_size(size_bytes)
    assert parse_size(shown) == pytest.approx(size_bytes, rel=0.06, abs=1)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0 ms"), (0.25, "250 ms"), (5.25, "5.2 s"), (65, "1m05s"), (3600, "1h00m"), (90_000, "25h00m"),
     (200_000, "2d07h")],
)  # fmt: skip
def test_durations_are_shown_with_two_units_at_most(seconds: float, shown: str) -> None:
    assert format_duration(seconds) == shown


@pytest.mark.parametrize(
    ("size_bytes", "shown"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 KB"), (64e9, "64.0 GB"), (5e15, "5000 TB")]
)
def test_sizes_are_shown_in_the_unit_that_fits(size_bytes: float, shown: str) -> None:
    assert format_size(size_bytes) == shown


@pytest.mark.parametrize(("count", "shown"), [(0, "0 files"), (1, "1 file"), (2_000, "2,000 files")])
def test_counts(count: int, shown: str) -> None:
    assert format_count(count, "file") == shown


@pytest.mark.parametrize(
    ("size_bytes", "told"), [(0, "0"), (1_500, "1500"), (1 << 20, "1MiB"), (3 << 29, "1536MiB"), (1 << 60, "1024PiB")]
)
def test_an_exact_size_is_read_back(size_bytes: int, told: str) -> None:
    assert exact_size(size_bytes) == told
    assert parse_size(told) == size_bytes
