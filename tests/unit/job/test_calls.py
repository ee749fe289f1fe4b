"""Which calls ranks begin together, and what two that are in different ones can say of each other."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest

from windlass.job.calls import Call, Calls, Turn

STEP, EVALUATION = Call.STEP, Call.EVALUATION


class Ranks:
    """What they tell is passed on when `pass_on` is called, the first of each: the relay does no more."""

    def __init__(self, count: int) -> None:
        self.all = [Calls(rank) for rank in range(count)]
        self._said: list[tuple[int, Turn]] = []
        self._passed: set[tuple[int, Call]] = set()

    def begin(self, rank: int, kind: Call, times: int = 1) -> None:
        for _ in range(times):
            self._say(rank, self.all[rank].begin(kind))

    def pass_on(self) -> int:
        count = 0
        while self._said:
            rank, turn = self._said.pop(0)
            if (turn.call, turn.kind) not in self._passed:
                self._passed.add((turn.call, turn.kind))
                count += 1
                for other, calls in enumerate(self.all):
                    if other != rank:
                        self._say(other, calls.hear(rank, turn.call, turn.kind))
        return count

    def _say(self, rank: int, turn: Turn | None) -> None:
        if turn is not None:
            self._said.append((rank, turn))

    def missed(self) -> list[str | None]:
        return [calls.missed() for calls in self.all]


def test_ranks_that_do_the_same_say_little_and_miss_nothing() -> None:
    ranks = Ranks(3)
    for _ in range(2):
        for kind, times in ((STEP, 20), (EVALUATION, 5)):
            for rank in range(3):
                ranks.begin(rank, kind, times)
    assert ranks.pass_on() == 3
    assert ranks.missed() == [None] * 3


ORDERS = list(itertools.permutations((0, 1)))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("heard_in_between", [True, False])
def test_both_know_when_one_has_more_batches_to_evaluate_with(order: tuple[int, ...], heard_in_between: bool) -> None:
    ranks = Ranks(2)
    for rank in order:
        ranks.begin(rank, STEP, 10)
    for rank in order:
        ranks.begin(rank, EVALUATION, 2)
    for rank in order:
        ranks.begin(rank, EVALUATION if rank == 0 else STEP)
        if heard_in_between:
            ranks.pass_on()
    ranks.pass_on()
    zero, one = ranks.missed()
    assert zero is not None
    assert zero.startswith("rank 1 was in step 11 while rank 0 was in evaluation 3; all ranks need the same number of")
    assert one is not None
    assert one.startswith("rank 0 was in evaluation 3 while rank 1 was in step 11; all ranks need the same number of")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ahead", [0, 1])
def test_both_know_when_only_one_evaluates(order: tuple[int, ...], ahead: int) -> None:
    """As under `if job.is_main`. The other may be a step further when it hears of it."""
    ranks = Ranks(2)
    for rank in order:
        ranks.begin(rank, STEP, 3)
    for rank in order:
        ranks.begin(rank, EVALUATION if rank == 0 else STEP, 1 + ahead * rank)
    ranks.pass_on()
    zero, one = ranks.missed()
    assert zero is not None
    assert zero.startswith("rank 1 was in step 4 while rank 0 was in evaluation 1;")
    assert one is not None
    assert one.startswith("rank 0 was in evaluation 1 while rank 1 was in step 4;")


def waiting(calls: Calls) -> threading.Thread:
    thread = threading.Thread(target=calls.wait, args=(3600.0,))
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("news", "is_well"),
    [
        (lambda calls: calls.agree(2), True),
        (lambda calls: calls.give_up(), True),
        (lambda calls: calls.end(1, [1, 0]), False),
        (lambda calls: calls.hear(1, 2, STEP), False),
    ],
)
def test_a_turn_is_waited_for_until_all_is_known(news: Callable[[Calls], object], is_well: bool) -> None:
    calls = Calls(0)
    assert calls.begin(STEP) is None
    turn = calls.begin(EVALUATION)
    assert turn is not None
    thread = waiting(calls)
    calls.agree(1)  # an older one
    assert thread.is_alive()
    news(calls)
    thread.join(60)
    assert not thread.is_alive()
    assert (calls.missed() is None) is is_well


def test_nobody_is_waited_for_once_nobody_is_heard() -> None:
    calls = Calls(0)
    calls.give_up()
    calls.begin(EVALUATION)
    calls.wait(3600.0)


def test_who_has_ended_is_missed_in_an_evaluation_too() -> None:
    calls = Calls(0)
    calls.end(1, [2, 1])
    for kind in (STEP, STEP, EVALUATION):
        calls.begin(kind)
        assert calls.missed() is None
    calls.begin(EVALUATION)
    assert calls.counts == "2 2"
    assert calls.missed() == (
        "rank 1 ended after 2 steps and 1 evaluations while rank 0 was in evaluation 2; all ranks need the same number "
        "of batches"
    )
