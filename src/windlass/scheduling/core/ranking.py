"""The queue as people see it: in which order runs would start if each had room when its turn comes."""

from __future__ import annotations

from windlass.scheduling.core.fairness import is_covered
from windlass.scheduling.core.order import Queue, find_starving, queues
from windlass.scheduling.core.table import Table
from windlass.scheduling.core.turns import Turns
from windlass.scheduling.core.types import Policy, Snapshot


def rank_queue(snapshot: Snapshot, policy: Policy, now: float) -> tuple[str, ...]:
    """Ids of all that wait. A pass differs from it where runs overtake others that have no room."""
    table = Table(snapshot, policy, now)
    # A dict for its order: one that has waited too long is in its queue twice.
    ranked: dict[str, None] = {}
    for run in find_starving(snapshot, policy, now)[:1]:
        ranked[run.run_id] = None
        table.charge(table.accounts.of(run.project), run.user, run.wants[0], run.wants[0].nodes)
    levels = queues(snapshot, policy, now)
    if table.accounts.has_quotas:
        for level in levels:
            _serve(table, level, ranked, covered_only=True)
            for queue in level.values():
                queue.rewind()
    for level in levels:
        _serve(table, level, ranked, covered_only=False)
    return tuple(ranked)


def _serve(table: Table, level: dict[str, Queue], ranked: dict[str, None], *, covered_only: bool) -> None:
    turns = Turns(table.accounts, level, table.share_of)
    while (turn := turns.next()) is not None:
        account, queue = turn
        while (run := queue.next()) is not None:
            want = run.wants[0]
            if run.run_id in ranked:
                continue
            if covered_only and not is_covered(account, want, want.nodes):
                queue.defer(run)
                continue
            ranked[run.run_id] = None
            table.charge(account, run.user, want, want.nodes)
            break
        turns.settle(account)
