"""The queue as people see it: in which order runs would start if each had room when its turn comes."""

from __future__ import annotations

from windlass.scheduling.core.fairness import Account
from windlass.scheduling.core.order import Queue, find_starving, queues
from windlass.scheduling.core.table import Table
from windlass.scheduling.core.turns import Turns
from windlass.scheduling.core.types import Policy, Snapshot, Waiting


def rank_queue(snapshot: Snapshot, policy: Policy, now: float) -> tuple[str, ...]:
    """Ids of all that wait. A pass differs from it where runs overtake others that have no room."""
    table = Table(snapshot, policy, now)
    # A dict for its order: one that has waited too long is in its queue twice.
    ranked: dict[str, None] = {}
    back = [run for run in snapshot.waiting if run.interrupted]
    back.sort(key=lambda run: (-run.priority, run.submitted_at, run.run_id))
    for run in [*back, *find_starving(snapshot, policy, now)[:1]]:
        if run.run_id not in ranked:
            ranked[run.run_id] = None
            _charge(table, run, table.accounts.of(run.project))
    levels = queues(snapshot, policy, now).values()
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
            if run.run_id in ranked:
                continue
            if covered_only and not table.is_covered(table.shape(run), account):
                queue.defer(run)
                continue
            ranked[run.run_id] = None
            _charge(table, run, account)
            break
        turns.settle(account)


def _charge(table: Table, run: Waiting, account: Account) -> None:
    """As if it had what it likes most, of the type that it would get first."""
    forms = table.shape(run).forms
    want = forms[0].want if forms else run.wants[0]
    types = dict.fromkeys(sorted(forms[0].types)[:1], want.gpus * want.nodes) if forms else None
    table.charge(account, run.user, want, want.nodes, types=types)
