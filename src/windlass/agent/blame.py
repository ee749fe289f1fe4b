"""Which rank's failure explains the end of an attempt. Pure.

The first rank to end is not always the first to fail: one that raises closes its connections before it is gone, and its
peers, with less to tidy up, may be gone before it. So what a rank says counts before when it ended.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

from .failure import Failure


class Candidate(NamedTuple):
    rank: int
    failure: Failure
    ended_at: float | None  # None: it lives, but its last words are a traceback
    exit_code: int | None = None
    signal_number: int | None = None


def decide_culprit(candidates: Sequence[Candidate]) -> Candidate | None:
    """One that tells of its own trouble before one that misses a peer; of equals, the first to end."""
    return min(candidates, key=_rank_of_blame, default=None)


def missed_peers(found: Candidate, ended_well: Sequence[int]) -> str:
    """Who may have been missed: ranks that had ended, and not failed."""
    if not (found.failure.about_peers and ended_well):
        return ""
    return "; %s had ended before, with code 0" % ", ".join("rank %d" % rank for rank in sorted(ended_well)[:8])


def is_certain(candidates: Sequence[Candidate]) -> bool:
    """Whether waiting for others to end could bring no better explanation."""
    return any(not found.failure.about_peers for found in candidates)


def _rank_of_blame(found: Candidate) -> tuple[bool, bool, float, int]:
    return found.failure.about_peers, found.ended_at is None, found.ended_at or 0.0, found.rank
