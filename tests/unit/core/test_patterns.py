"""Patterns of users: what they find is what Python finds, and none takes for ever."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from windlass.core.errors import InvalidInput
from windlass.core.patterns import Pattern, pattern_of

_PIECES = [
    "a",
    "b",
    ".",
    "\\n",
    "\\b",
    "\\B",
    "^",
    "$",
    "\\w",
    "\\d",
    "[ab]",
    "[^a]",
    "(a|bb)",
    "(?i:A)",
    "\\Z",
    "(?:ab?)",
]
_REPEATED = st.tuples(st.sampled_from(_PIECES), st.sampled_from(["", "", "*", "+?", "?", "{2}", "{1,3}", "{2,}"]))


@given(
    st.sampled_from(["", "(?m)", "(?s)"]),
    st.lists(st.lists(_REPEATED.map("".join), max_size=4).map("".join), min_size=1, max_size=2).map("|".join),
    st.text("abAc1 \n", max_size=8),
)
def test_it_finds_what_python_finds(flags: str, text: str, searched: str) -> None:
    assume(searched or "\\B" not in text)  # in nothing there is no edge of a word: Python knows that from 3.14 on
    with warnings.catch_warnings(action="ignore"):
        try:
            expected = re.search(flags + text, searched) is not None
        except re.error:
            return
        assert Pattern(flags + text).is_in(searched) is expected


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text", ["^(a+)+$", "^(a{1,20}){1,20}$", "a?" * 60 + "a" * 60 + "b", "a*a*a*a*a*b", "(a|aa)+$", "((a*)*)*b"]
)
def test_no_pattern_takes_for_ever(text: str) -> None:
    assert not Pattern(text).is_in("a" * 2_000 + "!")


@pytest.mark.parametrize(
    "text",
    [
        "(",
        "[z-a]",
        "*",
        r"(a)\1",
        "(?=a)",
        "(?<x",
        "(?:a{999}){999}",
        "(?:){99999999}",
        "(?a)b",
        "(?:(?:){9999}){9999}",
    ],
)
def test_what_cannot_be_searched_for_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        Pattern(text)


def test_what_is_remembered_is_forgotten_in_time() -> None:
    pattern = pattern_of("a.*\\d{3}$")
    for start in range(0x4E00, 0x4E00 + 20_000, 1_000):
        assert not pattern.is_in("a" + "".join(map(chr, range(start, start + 1_000))))
    assert pattern.is_in("a123")
