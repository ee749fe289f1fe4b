"""A run that its project's limit holds back, or its user's, may still take the place of those below it that count
towards the same limit: whoever is stopped for it leaves both room and amount.
"""

from __future__ import annotations

from collections.abc import Iterable

from windlass.scheduling.core.fairness import Account, names_types, needs
from windlass.scheduling.core.preempt import Claim
from windlass.scheduling.core.search import Victim
from windlass.scheduling.core.shapes import Form, Shape
from windlass.scheduling.core.table import Table
from windlass.scheduling.core.types import Running, Waiting

_EPSILON = 1e-9
_Excess = dict[tuple[Account, str], float]  # by whose limit and resource: by how much it would be passed


def exchange(table: Table, run: Waiting, shape: Shape, account: Account) -> bool:
    """Have others stopped, or wait for those that are stopping already, so that it stays within all limits then."""
    if not table.policy.preempts or len(table.stops) >= table.policy.most_stops:
        return False
    claim = table.claim(run, is_covered=False)
    for form in shape.forms:
        excess = _excess(table, run, form, account)
        if not excess:
            # Those who make way for it are on their way: only their room is waited for.
            if table.wait_for_room(run, shape, [form], account):
                return True
            continue
        leaving = _who_leaves(table, claim, run, excess)
        sacrifice = table.victims.choose(claim, [form], table.releases, leaving) if leaving else None
        if sacrifice is not None:
            table.sacrifice(claim, sacrifice)
            table.keep_soon(run, sacrifice.form, sacrifice.places, account)
            return True
    return False


def _excess(table: Table, run: Waiting, form: Form, account: Account) -> _Excess:
    found: _Excess = {}
    limited = [(each, each.limit) for each in account.path if each.limit]
    if table.has_user_limits:
        limited.append((table.user(run.user), table.policy.user_limit))
    stopped = {stop.run_id for stop in table.stops}
    gone = [each for each in table.snapshot.running if (each.stopping and not each.keeps) or each.run_id in stopped]
    for each, limit in limited:
        for resource, most in limit.items():
            more = 1.0 if resource == "runs" else needs(form.want, resource, form.nodes, form.types)
            over = each.holds(resource) + more - most - _amount(table, gone, each, resource, run.user)
            if more and over > _EPSILON:
                found[each, resource] = over
    return found


def _amount(table: Table, runs: Iterable[Running], account: Account, resource: str, user: str) -> float:
    """What these hold of what counts towards an account: of a project, or of this user."""
    total = 0.0
    for run in runs:
        counts = account in table.accounts.of(run.project).path or (run.user == user and account is table.user(user))
        if counts:
            total += _holds(table, run, resource)
    return total


def _holds(table: Table, run: Running, resource: str) -> float:
    if resource == "runs":
        return 1.0
    types = table.types_of(run)
    if types is not None and names_types((resource,)):
        return types.get(resource, 0.0)
    return needs(run.want, resource, len(run.placement.shares))


def _who_leaves(table: Table, claim: Claim, run: Waiting, excess: _Excess) -> list[Victim]:
    """Those who lose least, as few of them as it takes; none, if all together are not enough."""
    left = dict(excess)
    chosen: list[tuple[Victim, _Excess]] = []
    for victim in table.victims.entitled(claim):
        if victim.share is not None or all(over <= _EPSILON for over in left.values()):
            continue
        gives = {key: _amount(table, [victim.run], *key, run.user) for key in left}
        if any(gives[key] > 0 and over > _EPSILON for key, over in left.items()):
            chosen.append((victim, gives))
            left = {key: over - gives[key] for key, over in left.items()}
    if any(over > _EPSILON for over in left.values()):
        return []
    needed = []
    for victim, gives in reversed(chosen):
        without = {key: over + gives[key] for key, over in left.items()}
        if any(over > _EPSILON for over in without.values()):
            needed.append(victim)
        else:
            left = without
    return needed
