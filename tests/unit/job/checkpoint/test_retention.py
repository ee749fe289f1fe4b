"""Which checkpoints stay, for whatever checkpoints and policies there are."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.errors import InvalidInput
from windlass.core.manifest import Manifest, SaveReason
from windlass.job.checkpoint.retention import Keep, decide_retention


def manifest(step: int, *, created_at: float = 0.0, **metrics: float) -> Manifest:
    return Manifest(
        run_id=None,
        attempt=1,
        step=step,
        created_at=created_at,
        reason=SaveReason.INTERVAL,
        world_size=1,
        plan="",
        files=(),
        metrics=metrics,
    )


def deleted(keep: Keep, *manifests: Manifest, now: float = 0.0) -> list[int]:
    return [one.step for one in decide_retention(manifests, keep, now=now)]


def test_the_last_ones_stay() -> None:
    assert deleted(Keep(last=2), manifest(30), manifest(10), manifest(20)) == [10]


def test_the_best_stay_and_of_equal_ones_the_newest() -> None:
    all_of_them = [
        manifest(1, loss=0.5),
        manifest(2, loss=0.1),
        manifest(3, loss=0.1),
        manifest(4),
        manifest(5, loss=2),
    ]
    assert deleted(Keep(last=1, best="loss"), *all_of_them) == [1, 2, 4]
    assert deleted(Keep(last=1, best="loss", best_is="highest"), *all_of_them) == [1, 2, 3, 4]
    assert deleted(Keep(last=1, best="loss"), manifest(1, loss=math.nan), manifest(2)) == [1]


def test_the_last_that_were_well_stay_until_one_is_well_again() -> None:
    well = [manifest(5), manifest(10, loss=1.0), manifest(20, loss=0.5, lr=0.1)]
    sick = [manifest(step, loss=bad, lr=0.1) for step, bad in ((30, math.nan), (40, math.inf), (50, math.nan))]
    assert deleted(Keep(last=1), *well, *sick) == [5, 30, 40]
    assert deleted(Keep(last=1), *well, *sick, manifest(60, loss=0.4)) == [5, 10, 20, 30, 40, 50]
    assert deleted(Keep(last=2), *sick) == [30]


def test_multiples_and_young_ones_stay() -> None:
    all_of_them = [manifest(step, created_at=float(step)) for step in (50, 100, 150, 200, 250)]
    assert deleted(Keep(last=1, every_steps=100), *all_of_them) == [50, 150]
    assert deleted(Keep(last=1, newer_than_s=100), *all_of_them, now=260.0) == [50, 100, 150]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"last": None}, "keep.last is None, but must be a whole number, at least 1"),
        ({"last": 2.5}, "keep.last is 2.5"),
        ({"last": "3"}, "keep.last is '3'"),
        ({"last": True}, "keep.last is True"),
        ({"best_count": 0}, "keep.best_count is 0, but must be a whole number, at least 1"),
        ({"every_steps": 0.5}, "keep.every_steps is 0.5, but must be a whole number, at least 1"),
        ({"best": 3}, "keep.best is 3, but must be a metric's name"),
        ({"best_is": "x"}, "keep.best_is is 'x'; options: lowest, highest"),
        ({"newer_than_s": "1d"}, "keep.newer_than_s is '1d', but must be a number of seconds, at least 0"),
        ({"newer_than_s": -4}, "keep.newer_than_s is -4"),
        ({"newer_than_s": math.nan}, "keep.newer_than_s is nan"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Keep(**given)
    assert message in refused.value.message


@given(
    manifests=st.lists(
        st.builds(
            manifest,
            st.integers(0, 1000),
            created_at=st.floats(0, 1e9),
            loss=st.floats(allow_nan=True, allow_infinity=True),
        ),
        max_size=30,
    ),
    keep=st.builds(
        Keep,
        last=st.integers(1, 5),
        best=st.sampled_from([None, "loss", "other"]),
        best_is=st.sampled_from(["lowest", "highest"]),
        every_steps=st.none() | st.integers(1, 100),
        newer_than_s=st.none() | st.floats(0, 1e9),
    ),
    now=st.floats(0, 2e9),
)
def test_the_newest_is_never_deleted(manifests: list[Manifest], keep: Keep, now: float) -> None:
    gone = decide_retention(manifests, keep, now=now)
    left = [one for one in manifests if id(one) not in {id(other) for other in gone}]
    assert len(left) >= min(len(manifests), keep.last)
    if manifests:
        assert max(one.step for one in left) == max(one.step for one in manifests)
    well = [one.step for one in manifests if math.isfinite(one.metrics["loss"])]
    if well:
        assert max(well) in [one.step for one in left if math.isfinite(one.metrics["loss"])]
    assert decide_retention(left, keep, now=now) == []  # asking twice is asking once


def test_a_policy_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"keep\.last is 0, but must be a whole number, at least 1"):
        Keep(last=0)
