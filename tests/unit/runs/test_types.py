from __future__ import annotations

import itertools

import pytest

from windlass.core.errors import InvalidTransition
from windlass.runs.types import STATE_AFTER, TRANSITIONS, EventKind, RunState, transition

S = RunState


@pytest.mark.parametrize(("current", "target"), [*itertools.product(RunState, RunState)])
def test_a_change_is_in_the_table_or_refused(current: RunState, target: RunState) -> None:
    if target in TRANSITIONS[current]:
        assert transition(current, target) is target
    else:
        with pytest.raises(InvalidTransition, match=f"a run that is {current} cannot become {target}; possible: "):
            transition(current, target)


def test_every_state_is_of_exactly_one_sort() -> None:
    for state in RunState:
        assert [state.is_terminal, state.is_waiting, state.is_live].count(True) == 1


def test_every_state_can_be_reached_and_every_live_one_can_be_left() -> None:
    reached, frontier = {S.QUEUED}, {S.QUEUED}
    while frontier := {target for state in frontier for target in TRANSITIONS[state]} - reached:
        reached |= frontier
    assert reached == set(RunState)
    for state in RunState:
        if not state.is_terminal:
            assert {S.FAILED, S.CANCELLED} <= TRANSITIONS[state]


def test_success_is_for_ever() -> None:
    assert TRANSITIONS[S.SUCCEEDED] == frozenset()


def test_every_state_has_an_event_that_leads_to_it() -> None:
    assert set(STATE_AFTER.values()) == set(RunState)
    assert set(EventKind) - set(STATE_AFTER) == {
        EventKind.ATTEMPT_ENDED,
        EventKind.CANCEL_REQUESTED,
        EventKind.PREEMPTING,
        EventKind.ALERT,
        EventKind.CHECKPOINT,
        EventKind.RECOVERED,
        EventKind.SET_ASIDE,
    }
