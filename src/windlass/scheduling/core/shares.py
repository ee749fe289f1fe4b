"""What each project should have of what is in use now, by the tilted weights of those that have runs; and who has to
give way where one with less has no room. What is idle is nobody's: counted as due to somebody it would hide who has too
much. A project takes only what brings it nearer to what is due to it, and others nearer to theirs, but for small runs
that are in the way of a gang: their projects are owed then what those with too much have elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum

from windlass.scheduling.core.fairness import Account, Accounts

_EPSILON = 1e-9


class Shares:
    def __init__(self, accounts: Accounts, wanting: Iterable[Account]) -> None:
        """`wanting`: projects with runs that wait or run; the others leave their shares to them."""
        self._accounts = accounts
        self._parts: dict[Account, float] = {}  # as far as they were asked for
        self._spare: dict[Account, dict[Account, float]] = {}  # what one has too much, as far as another is concerned
        self._lost: dict[Account, float] = {}  # with those that are stopped
        pulls: dict[Account, list[float]] = {}
        for each in {each for leaf in wanting for each in leaf.path[:-1]}:
            assert each.parent is not None
            pulls.setdefault(each.parent, []).append(each.pull)
        self._weights = {above: fsum(found) for above, found in pulls.items()}  # of all that want something

    def due(self, account: Account) -> float:
        return self._part(account) * self.held(self._accounts.root)

    def _part(self, account: Account) -> float:
        if account.parent is None:
            return 1.0
        found = self._parts.get(account)
        if found is None:
            above = account.parent
            found = self._parts[account] = self._part(above) * account.pull / self._weights[above]
        return found

    def held(self, account: Account) -> float:
        return self._accounts.held(account) - self._lost.get(account, 0.0)

    def is_owed(self, account: Account, share: float) -> bool:
        """Whether it, and those above it, are nearer to what is due to them with so much more than without. Every claim
        begins with this question: what has started since the last one has changed what is in use."""
        self._spare.clear()
        return all(self.held(each) + share / 2 <= self.due(each) + _EPSILON for each in account.path[:-1])

    def gives_way(self, victim: Account, claimant: Account, share: float) -> bool:
        """Whether a project has no less than is due to it without so much: at the level where the two part."""
        return share <= self._spare_for(victim, claimant)

    def give_way(self, victim: Account, claimant: Account, share: float) -> bool:
        """Whether it is nearer to what is due to it without so much: several runs that make room for a gang may leave
        it less."""
        return share / 2 <= self._spare_for(victim, claimant)

    def _spare_for(self, victim: Account, claimant: Account) -> float:
        spare = self._spare.get(victim)
        if spare is None:
            spare = self._spare[victim] = {}
        found = spare.get(claimant)
        if found is None:
            found = spare[claimant] = self._spare_of(victim, claimant)
        return found

    def _spare_of(self, victim: Account, claimant: Account) -> float:
        each = self.parting(victim, claimant)
        return -1.0 if each in claimant.path else self.spare(each) + _EPSILON

    def parting(self, one: Account, other: Account) -> Account:
        """It, or who of those above it stands beside one above the other."""
        while one.parent is not None and one.parent not in other.path:
            one = one.parent
        return one

    def spare(self, account: Account) -> float:
        """What it has more than is due to it."""
        return self.held(account) - self.due(account)

    def lose(self, account: Account, share: float) -> None:
        for each in account.path:
            self._lost[each] = self._lost.get(each, 0.0) + share
        self._spare.clear()
