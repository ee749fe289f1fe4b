"""What a rank does about the failure of another one, and of its own."""

from __future__ import annotations

import select
import socket
import sys
import threading

import pytest

from windlass.job import failures
from windlass.job.accounting.anomaly import SickStep
from windlass.job.calls import Call
from windlass.job.failures import RanksDisagree, _Watch, is_consequence


@pytest.mark.parametrize("reads", [False, True])
def test_a_failure_is_not_kept_waiting_for_the_answer_of_a_rank_that_has_left(reads: bool) -> None:
    """Rank 0 hears of it too, ends, and with it whoever would have answered."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        watch = _Watch(3, ours)
        first: list[str | None] = []
        hears = threading.Thread(target=watch._wait)
        reports = threading.Thread(target=lambda: first.append(watch._report("NameError: nothing")))
        hears.start()
        reports.start()
        select.select([theirs], [], [], 60)
        if reads:
            theirs.recv(4096)
        theirs.close()  # with what was not read, the connection is reset
        hears.join(60)
        reports.join(60)
        assert first == [None]
        assert watch._heard.is_set()


def test_who_has_ended_is_missed_in_a_later_step_only() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        watch = _Watch(0, ours)
        theirs.sendall(b"ended 1 2 0\nended 2 1 0\nheard 0\n")
        theirs.close()
        watch.begin(Call.STEP)
        watch._wait()
        assert watch._first is None
        with pytest.raises(
            RanksDisagree, match="rank 2 ended after 1 steps while rank 0 was in step 2; all ranks need"
        ):
            watch.begin(Call.STEP)
        with pytest.raises(RanksDisagree, match="rank 1 ended after 2 steps while rank 0 was in step 3"):
            watch.begin(Call.STEP)


def test_a_rank_says_that_it_ends_if_it_had_steps_and_waits_until_others_know() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        watch = _Watch(3, ours)
        watch._leave()  # no steps: nobody counts on it
        watch.begin(Call.STEP)
        hears = threading.Thread(target=watch._wait)
        leaves = threading.Thread(target=watch._leave)
        hears.start()
        leaves.start()
        with theirs.makefile("r") as lines:
            assert lines.readline() == "ended 3 1 0\n"
        theirs.sendall(b"ended 3 1 0\n")
        leaves.join(60)
        assert watch._answered.is_set()
        assert watch._calls.missed() is None
        theirs.close()
        hears.join(60)


def test_a_failure_is_heard_after_other_news() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        watch = _Watch(0, ours)
        watch._ends.set()  # it would end this process
        theirs.sendall(b"ended 1 5 0\nrank 2 failed: ValueError: ended\n")
        watch._wait()
        assert watch._first == "rank 2 failed: ValueError: ended"


@pytest.mark.parametrize(
    ("reason", "told", "follows"),
    [
        ("ValueError: bad lr", "ValueError: bad lr", False),
        ("ValueError: bad lr", "ValueError: bad sample 17", True),
        ("windlass.core.plan.InvalidPlan: tensor=3", "windlass.core.plan.InvalidPlan: tensor=3", False),
        # Each rank says what it has itself.
        ("a.RanksDisagree: rank 0 has 8 samples", "a.RanksDisagree: rank 1 has 6 samples", False),
        ("RuntimeError: Connection closed by peer", "a.SickStep: step 7: the loss is nan", True),
        ("a.SickStep: step 7: the loss is nan", "RuntimeError: no memory", True),
    ],
)
def test_what_all_refuse_is_no_consequence(reason: str, told: str, follows: bool) -> None:
    assert is_consequence(reason, told) is follows


class Ended(Exception):
    """In place of the end of the process."""


class Watched(_Watch):
    def _end(self) -> None:
        raise Ended


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("SickStep: step 7: the loss is nan", ""),
        ("KeyError: 'x'", "windlass: rank 2 failed: KeyError: 'x'; the error of rank 0 is a consequence\n"),
    ],
)
def test_a_rank_says_itself_what_all_refuse(
    told: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[object] = []
    monkeypatch.setattr(sys, "excepthook", lambda _kind, error, _where: shown.append(error))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        watch = Watched(0, ours)
        monkeypatch.setattr(watch, "_wait", watch._heard.set)
        watch._first = f"rank 2 failed: {told}"
        watch.start()
        error = SickStep("step 7: the loss is nan")
        with pytest.raises(Ended):
            sys.excepthook(SickStep, error, None)
        assert shown == [error]
        assert capsys.readouterr().err == words


@pytest.mark.parametrize("told", ["a.SickStep: step 7: the loss is nan", "KeyError: 'x'"])
def test_a_rank_that_does_not_come_to_it_is_ended(
    told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "_OWN_WORDS_S", 0.01)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        watch = Watched(0, ours)
        theirs.sendall(f"rank 2 failed: {told}\n".encode())
        with pytest.raises(Ended):
            watch._wait()
        assert capsys.readouterr().err == f"windlass: rank 2 failed: {told}; rank 0 ends too\n"
        assert not watch._begins_to_end()  # an error that it comes to now is not told besides


def test_a_rank_that_comes_to_it_is_not_ended_by_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "_OWN_WORDS_S", 60.0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        watch = Watched(0, ours)
        hears = threading.Thread(target=watch._wait)
        hears.start()
        theirs.sendall(b"rank 2 failed: a.SickStep: step 7: the loss is nan\n")
        assert watch._heard.wait(60)
        assert watch._begins_to_end()
        hears.join(60)
        assert not hears.is_alive()
        assert capsys.readouterr().err == ""
