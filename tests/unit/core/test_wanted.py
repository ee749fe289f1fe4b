"""What is asked of a plan: `auto`, alone or beside keys, how specs keep it, and how many processes it can have."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.core.plan import InvalidPlan, Plan, Precision
from windlass.core.wanted import as_environment, parse_wanted, spec_text


@pytest.mark.parametrize(
    ("value", "kept", "text"),
    [
        ("auto", "auto", "auto"),
        (" Auto ", "auto", "auto"),
        ({"auto": True}, "auto", "auto"),
        ("auto,clip=1,precision=bf16", {"auto": True, "clip": 1.0, "precision": "bf16"}, "auto,clip=1,precision=bf16"),
        ({"clip": 1, "auto": "yes"}, {"auto": True, "clip": 1.0}, "auto,clip=1"),
        # What is named is kept at its default too, since the planner would choose it otherwise.
        ("auto,compile=false,data", {"auto": True, "compile": False, "data": None}, "auto,compile=false,data=none"),
        ("auto=false,tensor=2,shard=1", {"tensor": 2}, "tensor=2"),
        (Plan(shard=2, precision=Precision.FP16), {"shard": 2, "precision": "fp16"}, "shard=2,precision=fp16"),
        ("", {}, "data"),
    ],
)
def test_what_is_wanted_is_kept_and_read_again(value: Any, kept: Any, text: str) -> None:
    wanted = parse_wanted(value)
    assert wanted.as_spec() == kept
    assert spec_text(kept) == str(wanted) == text
    for again in (kept, text, as_environment(kept)):
        assert parse_wanted(again).as_spec() == kept


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("auto,tensr=2", "did you mean 'tensor'?"),
        ("auto,clip=-1", "must be a number above 0"),
        ("auto,auto", "given twice"),
        ("zero=3", "and shard is 1"),
    ],
)
def test_what_is_wrong_is_said(text: str, says: str) -> None:
    with pytest.raises(InvalidPlan) as refused:
        parse_wanted(text).check_size(4)
    assert says in str(refused.value)


def test_no_plan_with_what_is_named_has_so_many_processes() -> None:
    parse_wanted("auto,tensor=2,zero=1").check_size(8)
    with pytest.raises(InvalidPlan) as refused:
        parse_wanted("auto,data=2,tensor=3,clip=1").check_size(8)
    assert str(refused.value) == (
        "plan auto,data=2,tensor=3,clip=1 needs a multiple of 6 processes (data 2 × tensor 3), and the run has 8; "
        "6 or 12 processes fit"
    )
