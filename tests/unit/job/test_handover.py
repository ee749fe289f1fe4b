"""The queue between who makes batches and who takes them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from windlass.job.handover import CAREFUL, QUICK_S, Handover

SLOW_S = 10 * QUICK_S


@pytest.fixture
def handover() -> Iterator[Handover]:
    queue = Handover(4)
    yield queue
    queue.close()


def _rest_of_a_put(handover: Handover, made_in_s: float) -> int:
    """How few have to be left for a put into a full queue to go on."""
    thread = threading.Thread(target=handover.put, args=(("x", None, None), made_in_s))
    thread.start()
    while handover._resting_until is None:
        pass
    until = handover._resting_until
    while handover._resting_until is not None:
        handover.take()
    thread.join()
    return until


def _fill(handover: Handover, made_in_s: float) -> None:
    while len(handover._items) < 4:
        assert handover.put(("x", None, None), made_in_s)


def test_who_makes_all_of_them_quickly_rests_until_the_last_is_taken(handover: Handover) -> None:
    _fill(handover, 0.0)
    assert _rest_of_a_put(handover, 0.0) == 0


def test_who_takes_long_for_one_keeps_it_full_for_a_while(handover: Handover) -> None:
    _fill(handover, 0.0)
    assert _rest_of_a_put(handover, SLOW_S) == 3
    _fill(handover, 0.0)
    assert _rest_of_a_put(handover, 0.0) == 3, "the next one may take long again"


def test_after_many_quick_ones_it_rests_again(handover: Handover) -> None:
    assert handover.put(("x", None, None), SLOW_S)
    for _ in range(CAREFUL):
        handover.take()
        assert handover.put(("x", None, None), 0.0)
    _fill(handover, 0.0)
    assert _rest_of_a_put(handover, 0.0) == 0
