"""Patterns that logs are searched by."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.errors import InvalidInput
from windlass.tracking.logpattern import LogPattern


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("loss", b"step 3 loss 0.5", True),
        ("Loss", b"step 3 loss 0.5", False),
        ("^step", b"step 3", True),
        ("^3", b"step 3", False),
        (r"loss (nan|inf)", b"loss inf", True),
        (r"\d{3,}", b"12 345", True),
        ("größer", "wird größer".encode(), True),
        ("a.c", b"abc", True),
    ],
)
def test_a_pattern_finds_what_grep_would(text: str, line: bytes, found: bool) -> None:
    assert LogPattern.parse(text).matches(line) is found


def test_case_can_be_ignored() -> None:
    assert LogPattern.parse("ERROR", ignore_case=True).matches(b"an error")


@pytest.mark.parametrize(
    "text",
    [
        "(a+)+$",
        "(a*)*b",
        ".*.*.*x",
        "(aa|a)*b",
        "(a{1,20}){1,20}b",
        "a.*a.*a.*!",
        "a?" * 50 + "a" * 50 + "[bc]",
        "(aa|a)" * 30 + "[bc]",
    ],
)
@pytest.mark.timeout(30)
def test_no_pattern_takes_for_ever(text: str) -> None:
    """By the engine that goes on trying, each of these would take longer than anybody waits."""
    assert not LogPattern.parse(text).matches(b"a" * 4_000 + b"-")


def test_a_reference_to_what_was_found_before_is_refused() -> None:
    with pytest.raises(InvalidInput, match="found before"):
        LogPattern.parse(r"(a)\1")


@pytest.mark.parametrize("text", ["(", "[z-a]", "", "x" * 201, "*"])
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"pattern|regular expression"):
        LogPattern.parse(text)


@given(st.text("ab.\\(", min_size=1, max_size=4), st.lists(st.binary(max_size=12), max_size=5))
def test_what_is_passed_over_holds_no_match(text: str, lines: list[bytes]) -> None:
    try:
        pattern = LogPattern.parse(text)
    except InvalidInput:
        return
    piece = b"\n".join(lines)
    if not pattern.may_be_in(piece):
        assert not any(pattern.matches(line) for line in lines)


def test_a_plain_word_is_looked_for_as_such() -> None:
    assert LogPattern.parse("Traceback").literal == b"Traceback"
    assert LogPattern.parse("step .*loss nan").literal == b"loss nan"
    assert LogPattern.parse("Loss (nan|inf)", ignore_case=True).literal == b"loss "
    assert LogPattern.parse("(a|b)").literal == b""
