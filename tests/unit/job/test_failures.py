"""What a rank does about the failure of another one, and of its own."""

from __future__ import annotations

import select
import socket
import threading

import pytest

from windlass.job.failures import _Watch


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
