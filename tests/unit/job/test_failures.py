"""What a rank does about the failure of another one, and of its own."""

from __future__ import annotations

import select
import socket
import threading

import pytest

from windlass.job.failures import RanksDisagree, _Watch


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
        theirs.sendall(b"ended 1 2\nended 2 1\nheard 0\n")
        theirs.close()
        watch.begin_step()
        watch._wait()
        assert (watch._ended, watch._first) == ({1: 2, 2: 1}, None)
        with pytest.raises(
            RanksDisagree, match="rank 2 ended after 1 steps while rank 0 was in step 2; all ranks need"
        ):
            watch.begin_step()
        with pytest.raises(RanksDisagree, match="rank 1 ended after 2 steps while rank 0 was in step 3"):
            watch.begin_step()


def test_a_rank_says_that_it_ends_if_it_had_steps_and_waits_until_others_know() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        watch = _Watch(3, ours)
        watch._leave()  # no steps: nobody counts on it
        watch.begin_step()
        hears = threading.Thread(target=watch._wait)
        leaves = threading.Thread(target=watch._leave)
        hears.start()
        leaves.start()
        with theirs.makefile("r") as lines:
            assert lines.readline() == "ended 3 1\n"
        theirs.sendall(b"ended 3 1\n")
        leaves.join(60)
        assert watch._answered.is_set()
        assert watch._ended == {}
        theirs.close()
        hears.join(60)


def test_a_failure_is_heard_after_other_news() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        watch = _Watch(0, ours)
        watch._ends.set()  # it would end this process
        theirs.sendall(b"ended 1 5\nrank 2 failed: ValueError: ended\n")
        watch._wait()
        assert (watch._first, watch._ended) == ("rank 2 failed: ValueError: ended", {1: 5})
