from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.checkpoints.choice import (
    BestRule,
    by_checkpoint,
    copies_of,
    decide_best,
    decide_newest,
    decide_refusal,
    find,
)
from windlass.checkpoints.types import CheckpointRecord, CheckpointState, checkpoint_id, transition
from windlass.core.errors import Ambiguous, NotFound

LOSS = BestRule()


def record(step: int, state: str = "available", *, at: float = 1.0, id: str = "", **metrics: float) -> CheckpointRecord:
    return CheckpointRecord(
        id=id or checkpoint_id("r-1", f"/c/{step}", at),
        run_id="r-1",
        attempt=1,
        step=step,
        location=f"/c/{step}",
        tier="folder",
        size_bytes=1,
        file_count=1,
        world_size=1,
        plan="",
        format="dcp",
        reason="interval",
        metrics=metrics,
        state=CheckpointState(state),
        detail=None,
        created_at=at,
        verified_at=None,
    )


def test_newest_and_best_are_good_ones() -> None:
    records = [record(1, loss=3.0), record(2, loss=1.0, acc=0.1), record(3, "corrupt", loss=0.1), record(4, acc=0.9)]
    newest, best, other = decide_newest(records), decide_best(records, LOSS), BestRule(metric="acc", highest=True)
    assert newest is records[3]
    assert best is records[1]
    assert decide_best(records, other) is records[3]
    assert decide_newest([records[2]]) is None
    assert decide_best(records, BestRule(metric="none")) is None


def test_of_equally_good_ones_the_newest_is_the_best() -> None:
    records = [record(2, loss=1.0), record(1, loss=1.0)]
    assert decide_best(records, LOSS) is records[0]


def test_they_are_found_by_step_id_and_word() -> None:
    gone, here = record(7, "deleted", at=9.0, id="c-bbb", loss=0.0), record(7, at=1.0, id="c-bcd", loss=1.0)
    records = [record(8, id="c-xyz"), gone, here]
    assert find(records, "7", LOSS) is here
    assert find(records, "c-bb", LOSS) is gone
    assert find(records, "newest", LOSS) is records[0]
    assert find(records, "best", LOSS) is here
    with pytest.raises(Ambiguous, match="'c-b' is short for 2 checkpoints"):
        find(records, "c-b", LOSS)
    with pytest.raises(NotFound, match="no checkpoint '9'") as refused:
        find(records, "9", LOSS)
    assert refused.value.hint == "write a step (8, 7, 7), an id, `newest` or `best`"
    with pytest.raises(NotFound, match="no good checkpoint with the metric 'acc'"):
        find(records, "best", BestRule(metric="acc"))
    with pytest.raises(NotFound, match=r"no good checkpoint$"):
        find([gone], "newest", LOSS)


records = st.lists(
    st.builds(record, st.integers(0, 5), st.sampled_from(list(CheckpointState)), at=st.floats(0, 9)), min_size=1
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(records, st.data())
def test_a_run_that_is_not_over_always_keeps_one_to_go_on_from(
    found: list[CheckpointRecord], data: st.DataObject
) -> None:
    """However many are removed, in whatever order."""
    found = list({one.id: one for one in found}.values())
    had_one = decide_newest(found) is not None
    newest = decide_newest(found)
    for wanted in data.draw(st.permutations(found)):
        if decide_refusal(found, [wanted], run_is_over=False) is None:
            found = [one for one in found if one.id != wanted.id]
    assert (decide_newest(found) is not None) == had_one
    assert decide_newest(found) == newest


def test_of_a_run_that_is_over_all_may_go() -> None:
    only = record(1)
    assert decide_refusal([only], [only], run_is_over=True) is None
    refusal = decide_refusal([only], [only], run_is_over=False)
    assert refusal == "step 1 is the newest good checkpoint of run r-1, which is not over"


def test_a_checkpoint_is_at_several_places() -> None:
    """What a run would go on from stays at one of them."""
    older, folder = record(1), record(2, at=5.0)
    store = replace(folder, id="c-zz", tier="store", location="s3://b/r-1/step-2")
    records = [store, older, folder]
    assert decide_newest(records) is folder
    assert find(records, "2", LOSS) is folder
    assert find(records, "c-zz", LOSS) is store
    assert copies_of(records, store) == [folder, store]
    assert decide_refusal(records, [folder], run_is_over=False) is None
    assert decide_refusal([store, older], [store], run_is_over=False) is not None
    assert decide_refusal(records, [folder, store], run_is_over=False) is not None
    damaged = replace(folder, state=CheckpointState.CORRUPT)
    assert by_checkpoint([damaged, store, older]) == [[store, damaged], [older]]


def test_every_state_can_be_kept() -> None:
    for state in CheckpointState:
        assert transition(state, state) is state
