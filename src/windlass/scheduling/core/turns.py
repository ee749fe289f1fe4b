"""Whose turn it is next: at each level of the tree of projects the one with the least of what it should have."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heapreplace

from windlass.scheduling.core.fairness import Account, Accounts
from windlass.scheduling.core.order import Queue
from windlass.scheduling.core.types import Waiting

_Entry = tuple[float, str, Account]


class Turns:
    """Of the queues of one priority. Scores change only where somebody had a turn, so that heaps stay in order.

    Half of what its next run takes counts as if the project had it already: otherwise those with a small share, whom a
    run takes further beyond it, would get more than theirs on average.
    """

    def __init__(self, accounts: Accounts, queues: dict[str, Queue], share_of: Callable[[Waiting], float]) -> None:
        self._accounts = accounts
        self._share_of = share_of
        self._queues = {accounts.of(name): queue for name, queue in queues.items() if not queue.is_empty}
        self._below: dict[Account, list[_Entry]] = {}
        self._ahead: dict[Account, float] = {}  # what its next run takes
        served = {each for leaf in self._queues for each in leaf.path[:-1]}
        for each in sorted(served, key=lambda each: (-len(each.path), each.name)):
            assert each.parent is not None
            if each in self._below:
                heapify(self._below[each])
            self._below.setdefault(each.parent, []).append(self._entry(each))
        heapify(self._below.setdefault(accounts.root, []))

    def _entry(self, account: Account) -> _Entry:
        queue = self._queues.get(account)
        if queue is not None and not queue.is_empty:
            ahead = self._share_of(queue.peek())
        else:
            ahead = self._ahead[self._below[account][0][2]]
        self._ahead[account] = ahead
        return self._accounts.score(account, ahead / 2), account.name, account

    def next(self) -> tuple[Account, Queue] | None:
        """A project that has both runs of its own and projects below it serves its own first."""
        account = self._accounts.root
        if not self._below[account]:
            return None
        while self._is_served(account):
            account = self._below[account][0][2]
        return account, self._queues[account]

    def settle(self, account: Account) -> None:
        """After its turn: put it, and those above it, where they belong now."""
        for each in account.path[:-1]:
            assert each.parent is not None
            siblings = self._below[each.parent]
            if self._is_served(each) and not self._below.get(each):
                heappop(siblings)
            else:
                heapreplace(siblings, self._entry(each))

    def _is_served(self, account: Account) -> bool:
        queue = self._queues.get(account)
        return queue is None or queue.is_empty
