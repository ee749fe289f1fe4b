from __future__ import annotations

from windlass.agent.blame import Candidate, decide_culprit, is_certain, missed_peers
from windlass.agent.failure import Failure

OWN = Failure("exit_code", "ValueError: bad", "f1")
MISSES = Failure("exit_code", "RuntimeError: Connection closed by peer", "f2", True)


def test_own_trouble_comes_before_a_missed_peer_whoever_ended_first() -> None:
    first, second = Candidate(0, MISSES, 10.0), Candidate(1, OWN, 10.5)
    assert decide_culprit([first, second]) == second
    assert decide_culprit([second, first]) == second
    assert is_certain([first, second])
    assert not is_certain([first])


def test_a_rank_that_lives_with_a_traceback_is_better_than_a_consequence_and_worse_than_an_end() -> None:
    hangs = Candidate(2, OWN, None)
    assert decide_culprit([Candidate(0, MISSES, 10.0), hangs]) == hangs
    ended = Candidate(1, OWN, 10.0)
    assert decide_culprit([hangs, ended]) == ended


def test_of_equals_the_first_in_time_and_then_by_rank() -> None:
    assert decide_culprit([Candidate(1, OWN, 10.0), Candidate(0, OWN, 11.0)]) == Candidate(1, OWN, 10.0)
    assert decide_culprit([Candidate(1, OWN, 10.0), Candidate(0, OWN, 10.0)]) == Candidate(0, OWN, 10.0)
    assert decide_culprit([]) is None


def test_peers_that_ended_well_may_be_the_missed_ones() -> None:
    assert missed_peers(Candidate(0, MISSES, 1.0), [2, 1]) == "; rank 1, rank 2 had ended before, with code 0"
    assert missed_peers(Candidate(0, OWN, 1.0), [1]) == ""
    assert missed_peers(Candidate(0, MISSES, 1.0), []) == ""
