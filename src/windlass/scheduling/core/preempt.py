"""Who makes room for a run that cannot start: only those it is entitled to displace, and of them the set that loses
least, in GPU-seconds: the work since the last checkpoint and the coming back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import fsum, inf

from windlass.scheduling.core.fairness import Account, Accounts
from windlass.scheduling.core.pool import Pool, milli
from windlass.scheduling.core.releases import Releases
from windlass.scheduling.core.search import Piece, Search, Victim
from windlass.scheduling.core.shapes import Form
from windlass.scheduling.core.shares import Shares
from windlass.scheduling.core.types import Cause, Policy, Running, size

MOST_DOUBLINGS = 10
OWED_PART = 0.25  # of what it waited for
LITTLE = 0.05  # of its time a run that is stopped again and again loses by coming back
_EPSILON = 1e-9
BUDGET = 1000  # looks at nodes in one pass: what is not found by then is looked for in the next


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Of a run that cannot start otherwise."""

    run_id: str
    project: str
    priority: int
    is_covered: bool  # by a guaranteed quota
    rank: float
    account: Account | None = None  # of a project that has less than is due to it, even with this run
    part: float = 0.0  # of the cluster
    is_old: bool = False  # it waited too long, and comes first in its project


@dataclass(frozen=True, slots=True)
class Sacrifice:
    form: Form
    places: list[int]
    victims: list[Victim]
    lost: float


def lost_by_stopping(run: Running, now: float) -> float:
    """GPU-seconds."""
    since = 0.0 if run.saves_on_notice else now - max(run.started_at, run.saved_at or run.started_at)
    return (max(0.0, since) + run.restart_s) * size(run.want) * len(run.placement.shares)


def protected_until(run: Running, policy: Policy) -> float:
    """Whoever was stopped before is left alone for longer, until what coming back takes is little beside it: that
    bounds what is lost by being stopped often."""
    most_s = max(policy.min_run_s, run.restart_s / LITTLE)
    return run.started_at + min(most_s, policy.min_run_s * 2.0 ** min(run.preemptions, MOST_DOUBLINGS))


def is_owed_time(run: Running, policy: Policy, now: float) -> bool:
    """One that had to wait too long is not displaced for its rank again before it has run for a part of what it
    waited."""
    return run.waited_s >= policy.ageing_s and now - run.started_at < OWED_PART * run.waited_s


def entitlement(claim: Claim, victim: Victim, policy: Policy, shares: Shares | None = None) -> Cause | None:
    """Those above are entitled: covered by their quota before those that borrow, then by priority, then those whose
    project has too little before those whose project has too much; within a project by priority, then by rank, if that
    is worth what the restart costs. Nobody is above somebody who is above them."""
    run = victim.run
    if victim.share is not None and claim.priority >= run.priority:
        return Cause.ROOM
    if run.project == claim.project:
        if claim.priority != run.priority:
            return Cause.PRIORITY if claim.priority > run.priority else None
        is_behind = claim.is_old and victim.rank > -inf and run.has_saved
        if is_behind or is_displaced(claim.rank, victim, policy):
            return Cause.ORDER
        return Cause.SHARE if claim.account is not None and _is_in_the_way(claim, victim) else None
    if claim.is_covered != victim.is_covered:
        return Cause.RECLAIM if claim.is_covered else None
    if claim.priority != run.priority:
        return Cause.PRIORITY if claim.priority > run.priority else None
    if shares is None or claim.account is None or victim.account is None or victim.is_covered:
        return None
    # All that one without a checkpoint has done would be lost: a share can wait until it ends.
    gives_way = run.has_saved and shares.gives_way(victim.account, claim.account, victim.part)
    return Cause.SHARE if gives_way or _is_in_the_way(claim, victim) else None


def _is_in_the_way(claim: Claim, victim: Victim) -> bool:
    """A gang that its project is owed has small ones stopped, its own among others and those of projects that have no
    more than is due to them: they come back elsewhere, for what the gang is owed some project has too much."""
    return 2 * victim.part <= claim.part and victim.run.has_saved


def is_displaced(rank: float, victim: Victim, policy: Policy) -> bool:
    """One that has saved nothing would lose all that it did: nobody's turn is worth that."""
    if policy.index_margin is None or not victim.run.has_saved:
        return False
    return victim.rank > policy.index_margin * rank + victim.lost


class Victims:
    """All that could be stopped now."""

    def __init__(
        self,
        pool: Pool,
        running: Iterable[Running],
        covered: set[str],
        ranks: dict[str, float],
        policy: Policy,
        now: float,
        shares: Shares | None = None,
        accounts: Accounts | None = None,
    ) -> None:
        self._pool = pool
        self._shares = shares
        self._policy = policy
        self._looks = BUDGET
        found: list[Victim] = []
        for run in running:
            if run.preemptible and not run.stopping and protected_until(run, policy) <= now:
                account, part = None, 0.0
                if accounts is not None:
                    account = accounts.of(run.project)
                    part = accounts.share_of(run.want, len(run.placement.shares))
                rank = ranks.get(run.run_id, -inf)
                found += _victims(run, pool, run.run_id in covered, rank, now, account, part)
        # A node of an elastic run before the whole of it.
        found.sort(key=lambda victim: (victim.lost, victim.share is None, victim.run.run_id, victim.share or 0))
        self._found = found
        self._gone: set[str] = set()  # runs that are stopped or made smaller already
        self._at: dict[int, list[Victim]] = {}
        self._of_project: dict[str, list[Victim]] = {}
        self._lowest: dict[str, int] = {}
        self._worst: dict[str, Victim] = {}
        for victim in found:
            run = victim.run
            for place in victim.pieces:
                self._at.setdefault(place, []).append(victim)
            self._of_project.setdefault(run.project, []).append(victim)
            self._lowest[run.project] = min(run.priority, self._lowest.get(run.project, run.priority))
            worst = self._worst.get(run.project)
            # By what is left of its rank beyond what stopping it costs: that is what displaces it.
            if worst is None or victim.rank - victim.lost > worst.rank - worst.lost:
                self._worst[run.project] = victim
        self._standing = min(((victim.is_covered, victim.run.priority) for victim in found), default=None)
        self._has_extra = min((victim.run.priority for victim in found if victim.share is not None), default=None)

    def are_hopeless(self, claim: Claim) -> bool:
        """Quickly: nobody at all makes room for it."""
        if self._standing is None or self._looks <= 0:
            return True
        if self._is_above_others(claim):
            return False
        worst = self._worst.get(claim.project)
        return worst is None or not (
            claim.is_old
            or claim.priority > self._lowest[claim.project]
            or is_displaced(claim.rank, worst, self._policy)
        )

    def choose(
        self, claim: Claim, forms: Iterable[Form], releases: Releases, given: Collection[Victim] = ()
    ) -> Sacrifice | None:
        """Of all alternatives the one that costs least; the one that is liked more, if they cost the same. `given` are
        stopped in any case."""
        best: Sacrifice | None = None
        for form in forms:
            for group in form.groups:
                found = self._choose(claim, form, group, releases, given)
                if found is not None and (best is None or found.lost < best.lost) and self._is_due(claim, found):
                    best = found
        return best

    def _is_due(self, claim: Claim, sacrifice: Sacrifice) -> bool:
        """Not where only its own project would give way for its share, which has no more of it then; nor where all who
        give way together take a project further from what is due to it, unless it can take that from others."""
        if claim.account is None or self._shares is None:
            return True
        large: dict[Account, float] = {}
        small: dict[Account, float] = {}
        is_own = False
        for victim in sacrifice.victims:
            if entitlement(claim, victim, self._policy, self._shares) is not Cause.SHARE or victim.account is None:
                continue
            if victim.account is claim.account:
                is_own = True
            else:
                parts = small if _is_in_the_way(claim, victim) else large
                parts[victim.account] = parts.get(victim.account, 0.0) + victim.part
        if is_own and not large and not small:
            return any(victim.run.project != claim.project for victim in sacrifice.victims)
        if not all(self._shares.give_way(account, claim.account, part) for account, part in large.items()):
            return False
        return not small or self._come_back(claim, claim.account, sacrifice, large, small)

    def _come_back(
        self,
        claim: Claim,
        claimant: Account,
        sacrifice: Sacrifice,
        large: Mapping[Account, float],
        small: Mapping[Account, float],
    ) -> bool:
        """Whether the small ones that are in the way of a gang find room again with those that have too much: as much
        as their projects would be short of must be held by runs that can be stopped for it."""
        assert self._shares is not None
        taken: dict[Account, float] = {}
        for account, part in (*large.items(), *small.items()):
            each = self._shares.parting(account, claimant)
            taken[each] = taken.get(each, 0.0) + part
        spare = {each: self._shares.spare(each) for each in taken}
        # One that is nearer to what is due to it without them, if on the other side of it, is short of nothing.
        short = fsum(
            min(part, part - spare[each])
            for each, part in taken.items()
            if each not in claimant.path and part / 2 > spare[each] + _EPSILON
        )
        if short <= _EPSILON:
            return True
        chosen = {victim.run.run_id for victim in sacrifice.victims} | self._gone
        left: dict[Account, float] = {}
        for victim in self._found:
            if victim.run.run_id not in chosen and self._gives_way(claim, claimant, victim):
                each = self._shares.parting(victim.account or claimant, claimant)
                left[each] = left.get(each, 0.0) + victim.part
        elsewhere = fsum(
            max(0.0, min(part, self._shares.spare(each) - taken.get(each, 0.0)))
            for each, part in left.items()
            if each not in claimant.path
        )
        return short <= elsewhere + _EPSILON

    def _gives_way(self, claim: Claim, claimant: Account, victim: Victim) -> bool:
        """To anybody who is owed a share and stands no higher than this claim."""
        if self._shares is None or victim.account is None or victim.share is not None:
            return False
        can_be_stopped = victim.run.has_saved and not victim.is_covered and victim.run.priority <= claim.priority
        return can_be_stopped and self._shares.gives_way(victim.account, claimant, victim.part)

    def stop(self, victims: Iterable[Victim]) -> None:
        for victim in victims:
            self._gone.add(victim.run.run_id)
            if self._shares is not None and victim.account is not None and victim.share is None:
                self._shares.lose(victim.account, victim.part)

    def _choose(
        self, claim: Claim, form: Form, group: list[int], releases: Releases, given: Collection[Victim]
    ) -> Sacrifice | None:
        open_already = releases.fitting_soon(form, group)
        missing = form.nodes - len(open_already)
        if missing <= 0:
            return Sacrifice(form, open_already, list(given), fsum(victim.lost for victim in given))
        search = Search(self._pool, form, releases, self._at, given)
        avoided = set(open_already)
        kinds = set(group)
        for place in {place for victim in given for place in victim.pieces}:
            if place not in avoided and self._pool.kind_at[place] in kinds:
                search.look(place)
        for count, victim in enumerate(self.entitled(claim)):
            # A gang may make room on all the nodes that are missing at once. Now and then is often enough to look.
            may_end = (count < 8 or count % 8 == 0) and len(search.costs) >= missing
            if may_end and search.is_settled(missing, victim.lost / missing):
                break
            search.allowed.add(victim)
            for place in victim.pieces:
                if place not in avoided and self._pool.kind_at[place] in kinds:
                    self._looks -= 1
                    search.look(place)
            if self._looks <= 0:
                break
        best: Sacrifice | None = None
        for spread in (1, missing) if missing > 1 else (1,):
            if (opened := search.open(missing, spread)) is not None:
                places, victims = opened
                lost = fsum(victim.lost for victim in victims)
                if best is None or lost < best.lost:
                    best = Sacrifice(form, open_already + places, victims, lost)
        return best

    def _is_above_others(self, claim: Claim) -> bool:
        """Whether somebody of another project might make room for it."""
        if self._has_extra is not None and claim.priority >= self._has_extra:
            return True
        if self._standing is None:
            return False
        standing = (claim.is_covered, claim.priority)
        return standing > self._standing or (claim.account is not None and standing == self._standing)

    def entitled(self, claim: Claim) -> Iterator[Victim]:
        """The least lost first."""
        found = self._found if self._is_above_others(claim) else self._of_project.get(claim.project, [])
        for victim in found:
            if (
                victim.run.run_id not in self._gone
                and entitlement(claim, victim, self._policy, self._shares) is not None
            ):
                yield victim


def _victims(
    run: Running, pool: Pool, is_covered: bool, rank: float, now: float, account: Account | None, part: float
) -> list[Victim]:
    pieces = [_piece(run, at, pool) for at in range(len(run.placement.shares))]
    whole: dict[int, Piece] = {place: piece for place, piece in pieces if place is not None}
    if not whole:
        return []
    found = [Victim(run, lost_by_stopping(run, now), is_covered, rank, whole, None, account, part)]
    if len(whole) < len(pieces) or not run.has_saved:
        return found  # a node of it is closed or gone, where it is not to go on; or it would begin anew
    smaller = lost_by_stopping(run, now)  # it comes back at once, but from its last checkpoint too
    for at, (place, piece) in enumerate(pieces[run.want.nodes :], start=run.want.nodes):
        if place is not None:
            found.append(Victim(run, smaller, is_covered, rank, {place: piece}, at, account))
    return found


def _piece(run: Running, at: int, pool: Pool) -> tuple[int | None, Piece]:
    share = run.placement.shares[at]
    place = pool.at.get((run.placement.engine, share.node))
    is_part = share.gpu_part < 1.0
    parts = tuple((gpu, milli(share.gpu_part)) for gpu in share.gpu_indices) if is_part else ()
    gpus = 0 if is_part else len(share.gpu_indices)
    return place, Piece(gpus, milli(share.cpus), share.memory_bytes, parts)
