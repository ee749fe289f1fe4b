"""What a node's part in an attempt comes to once all of its ranks have ended, those of former generations included."""

from __future__ import annotations

import os
import time
from typing import Any, Iterable, Mapping, NamedTuple

from . import comeback, layout, outcome
from .progress import read_progress
from .ranks import Rank
from .verdict import Verdict


class Dead(NamedTuple):
    """What is kept of ranks whose places others have taken."""

    max_rss_bytes: int = 0
    cpu_s: float = 0.0
    dropped_log_bytes: int = 0

    def joined_by(self, ranks: Iterable[Rank]) -> Dead:
        ended = list(ranks)
        ends = [rank.end for rank in ended if rank.end is not None]
        return Dead(
            max([self.max_rss_bytes, *(end["max_rss_bytes"] for end in ends)]),
            self.cpu_s + sum(end["cpu_seconds"] for end in ends),
            self.dropped_log_bytes + sum(rank.log.dropped_bytes for rank in ended),
        )


def done_ranks(plan: Mapping[str, Any], ranks: Iterable[Rank]) -> frozenset[int]:
    """Whose work is done now, as far as can be told: they have ended well, or said that no more steps are to come. Of
    workers that a launcher has started, all must have said so."""
    folder = str(plan["node_dir"])
    if plan["self_launching"]:
        told = comeback.told_progress(folder)
        finished = len(told) >= int(plan["workers_per_node"]) and all(one.finished_at > 0 for one in told)
        return frozenset(rank.rank for rank in ranks if finished or _ended_well(rank))
    return frozenset(
        rank.rank
        for rank in ranks
        if _ended_well(rank) or read_progress(os.path.join(folder, layout.progress(rank.rank))).finished_at > 0
    )


def _ended_well(rank: Rank) -> bool:
    return rank.end is not None and rank.end["exit_code"] == 0


def has_completed(verdict: Verdict, done: frozenset[int], ranks: Iterable[Rank]) -> bool:
    """Whether one that was warned had done its work by then. A code of 0 alone does not say so: whoever saves when
    warned may end with it too, halfway."""
    essential = [rank for rank in ranks if rank.essential]
    return verdict.reason == "preempted" and all(rank.rank in done and _ended_well(rank) for rank in essential)


def conclude(
    verdict: Verdict,
    before: Dead,
    ranks: Iterable[Rank],
    *,
    done: frozenset[int],
    usage: dict[str, Any],
    started_at: float,
    had_to_be_killed: bool,
) -> dict[str, Any]:
    """The outcome of a node whose ranks have all ended. `usage`: the peaks of what was sampled; `done`: whose work was
    done when they were told to stop."""
    last = list(ranks)
    if has_completed(verdict, done, last):
        verdict = Verdict("completed", "")
    total = before.joined_by(last)
    message = verdict.message
    if had_to_be_killed and verdict.reason in ("cancelled", "preempted", "timeout"):
        message += "; had to be killed after its grace period"
    if total.dropped_log_bytes:
        lost = "%d bytes of log output were lost to a full disk" % total.dropped_log_bytes
        message += "%s%s" % ("; " if message else "", lost)
    usage["peak_rss_bytes"] = max(usage.get("peak_rss_bytes", 0), total.max_rss_bytes)
    usage["cpu_seconds"] = max(usage.get("cpu_seconds", 0.0), round(total.cpu_s, 3))
    ends = [rank.end for rank in last if rank.end is not None]
    return outcome.summary(
        reason=verdict.reason,
        message=message,
        exit_code=0 if verdict.reason == "completed" else verdict.exit_code,
        signal_number=verdict.signal_number,
        rank=verdict.rank,
        fingerprint=verdict.fingerprint,
        about_peers=verdict.about_peers,
        traceback=verdict.traceback,
        trouble=verdict.trouble,
        started_at=started_at,
        ended_at=time.time(),
        ranks=sorted(ends, key=lambda end: int(end["rank"])),
        usage=usage,
        dropped_log_bytes=total.dropped_log_bytes,
    )
