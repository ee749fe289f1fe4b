"""The queue between who makes batches and who takes them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from windlass.job.handover import CAREFUL, QUICK_S, Handover

SLOW_S = 1000.0  # also beside how long a test takes them


@pytest.fixture
def handover() -> Iterator[Handover]:
    """Of which so many have been taken that no batch is one of the first."""
    queue = Handover(4)
    for _ in range(5):
        queue.put(("x", None, None), 0.0)
        queue.take()
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


def test_the_first_ones_may_take_long() -> None:
    handover = Handover(4)
    _fill(handover, SLOW_S)
    assert _rest_of_a_put(handover, SLOW_S) == 0
    _fill(handover, 0.0)
    assert _rest_of_a_put(handover, SLOW_S) == 3, "it is none of the first"
    handover.close()


def test_what_is_made_much_faster_than_it_is_taken_is_made_quickly(handover: Handover) -> None:
    _fill(handover, 0.0)
    handover._taken_in_s = 1.0
    assert _rest_of_a_put(handover, 0.24) == 0
    _fill(handover, 0.0)
    handover._taken_in_s = 1.0
    assert _rest_of_a_put(handover, 0.25) == 3


def test_how_fast_they_are_taken_is_seen_while_the_maker_rests(
    handover: Handover, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([100.0, 108.0])
    monkeypatch.setattr("windlass.job.handover.time", SimpleNamespace(monotonic=lambda: next(times)))
    _fill(handover, 0.0)
    assert _rest_of_a_put(handover, 0.0) == 0
    assert handover._taken_in_s == 2.0


def test_of_light_ones_more_are_there_once_the_first_were_quick() -> None:
    handover = Handover(2, of_light=4)
    threads = [threading.Thread(target=handover.put, args=(("x", None, None), 0.0), kwargs={"is_light": True})]
    for _ in range(2):
        assert handover.put(("x", None, None), 0.0, is_light=True)
    threads[0].start()
    while handover._resting_until is None:  # the third is one of the first
        pass
    for _ in range(2):
        handover.take()
    threads[0].join()
    for _ in range(3):
        assert handover.put(("x", None, None), 0.0, is_light=True)
    assert len(handover._items) == 4
    handover.close()
    assert not handover.put(("x", None, None), 0.0, is_light=True)


def _rest_of_light_ones(handover: Handover, *, late_s: float = 0.0) -> tuple[int, int | None]:
    """How many are there when the maker rests, one of which took that long, and how few have to be left."""

    def make() -> None:
        for made_in_s in (late_s, *[0.0] * 50):
            if not handover.put(("x", None, None), made_in_s, is_light=True):
                break

    thread = threading.Thread(target=make)
    thread.start()
    while handover._resting_until is None:
        pass
    found = len(handover._items), handover._resting_until
    handover.close()
    thread.join()
    return found


@pytest.mark.parametrize("late_s", [0.0, 15 * QUICK_S])
def test_some_light_ones_are_left_for_a_maker_that_is_late_now_and_then(late_s: float) -> None:
    handover = Handover(2, of_light=16)
    for _ in range(3):
        handover.put(("x", None, None), 0.0)
        handover.take()
    assert _rest_of_light_ones(handover, late_s=late_s) == (16, 4)


def test_light_ones_whose_mean_is_long_are_few() -> None:
    handover = Handover(2, of_light=16)
    for _ in range(3):
        handover.put(("x", None, None), 0.0)
        handover.take()
    assert _rest_of_light_ones(handover, late_s=SLOW_S) == (2, 1)


@pytest.mark.parametrize(("is_light", "made_in_s"), [(False, 0.0), (True, SLOW_S)])
def test_heavy_ones_and_slow_ones_are_as_many_as_was_asked(is_light: bool, made_in_s: float) -> None:
    handover = Handover(2, of_light=4)
    for _ in range(3):
        handover.put(("x", None, None), 0.0)
        handover.take()
    for _ in range(2):
        assert handover.put(("x", None, None), made_in_s, is_light=is_light)
    third = threading.Thread(target=handover.put, args=(("x", None, None), made_in_s), kwargs={"is_light": is_light})
    third.start()
    while handover._resting_until is None:
        pass
    assert len(handover._items) == 2
    handover.close()
    third.join()
