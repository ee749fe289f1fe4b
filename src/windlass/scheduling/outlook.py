"""What keeps each run that waits from starting, and who would have to end for it: found with the pool, the limits and
the order that decisions are made with. Pure; `explain` puts it into words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from windlass.scheduling.core.fairness import Account, Amount, capacity, dominant_share, exceeded, is_within
from windlass.scheduling.core.index import lasted
from windlass.scheduling.core.learned import Learned
from windlass.scheduling.core.pool import holdings
from windlass.scheduling.core.ranking import rank_queue
from windlass.scheduling.core.releases import expected_end
from windlass.scheduling.core.shapes import Form
from windlass.scheduling.core.table import Table
from windlass.scheduling.core.types import (
    Decisions,
    NodeState,
    Policy,
    Reservation,
    Running,
    Snapshot,
    Waiting,
    Want,
    begun,
)


class Obstacle(StrEnum):
    NONE = "none"  # it starts with the next pass
    NO_NODES = "no_nodes"  # no engine has told of any
    ABSENT = "absent"  # no nodes that could hold it are there: set aside, away, gone
    LIMIT = "limit"  # of its project, or of one above
    USER_LIMIT = "user_limit"
    SOON = "soon"  # those that make room for it have been warned
    ROOM = "room"  # what it needs is in use
    KEPT = "kept"  # it would have room that is kept for others
    TURN = "turn"  # it would have room, and others come first


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindrance:
    obstacle: Obstacle
    want: Want  # the alternative that it is told of
    holder: str = ""  # whose limit: a project or a user
    resource: str = ""  # and of what
    held: float = 0.0
    most: float = 0.0
    kept_for: tuple[str, ...] = ()  # runs
    reservation: Reservation | None = None  # its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """What is missing on the node that lacks least, and on how many nodes."""

    nodes_with_room: int = 0
    suited: int = 0  # nodes that could hold a share if they were idle
    gpus: int = 0  # missing on the best of those that have no room
    cpus: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Short:
    """A node that has no room, with what is free there."""

    node: NodeState
    gpus: int
    cpus: float
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """A run that has to end, and when it is thought to."""

    run: Running
    ends_at: float
    gpus: int  # that it gives back where they are needed


class Outlook:
    """A queue at one moment: what was decided is taken as done."""

    def __init__(self, snapshot: Snapshot, policy: Policy, decisions: Decisions, now: float) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.now = now
        self.waiting = {run.run_id: run for run in snapshot.waiting}
        self.starting = {start.run_id for start in decisions.starts}
        self.stops_for: dict[str, list[str]] = {}
        for stop in decisions.stops:
            self.stops_for.setdefault(stop.by, []).append(stop.run_id)
        for resize in decisions.resizes:
            if resize.by is not None:
                self.stops_for.setdefault(resize.by, []).append(resize.run_id)
        self.reservations = {kept.run_id: kept for kept in decisions.reservations}
        after = _carried_out(snapshot, decisions, now)
        self.running = {run.run_id: run for run in after.running}
        self._table = Table(after, policy, now)
        self._known: dict[tuple[int, str, str], Hindrance] = {}

    @cached_property
    def order(self) -> tuple[str, ...]:
        return rank_queue(self.snapshot, self.policy, self.now)

    @cached_property
    def position(self) -> dict[str, int]:
        """From 1."""
        return {run_id: place for place, run_id in enumerate(self.order, start=1)}

    @cached_property
    def projects(self) -> set[str]:
        """That run or wait."""
        return {run.project for run in self.running.values()} | {run.project for run in self.waiting.values()}

    def account(self, project: str) -> Account:
        return self._table.accounts.of(project)

    def share_held(self, account: Account) -> float:
        """Its dominant share of the cluster now."""
        return dominant_share((account.gpus, account.cpus, account.memory), self._whole)

    @cached_property
    def _whole(self) -> Amount:
        return capacity(self._table.pool.nodes)

    @property
    def has_quotas(self) -> bool:
        return self._table.accounts.has_quotas

    # ---- what hinders ------------------------------------------------------------------------------------------

    def hindrance(self, run: Waiting) -> Hindrance:
        own = self.reservations.get(run.run_id)
        if run.run_id in self.starting:
            return Hindrance(obstacle=Obstacle.NONE, want=run.wants[0])
        if run.run_id in self.stops_for or (own is not None and own.at <= self.now + self.policy.grace_s):
            return Hindrance(obstacle=Obstacle.SOON, want=run.wants[0], reservation=own)
        key = (id(run.wants), run.project, run.user)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._hindrance(run)
        return replace(found, reservation=own) if own is not None else found

    def _hindrance(self, run: Waiting) -> Hindrance:
        forms = self._forms(run)
        if not self.snapshot.nodes:
            return Hindrance(obstacle=Obstacle.NO_NODES, want=run.wants[0])
        if not forms:
            return Hindrance(obstacle=Obstacle.ABSENT, want=run.wants[0])
        account = self.account(run.project)
        allowed = self._table.allowed(run, self._table.shape(run), account)
        if not allowed:
            return self._limited(run, forms[0], account)
        if not self._table.has_room(allowed):
            return Hindrance(obstacle=Obstacle.ROOM, want=allowed[0].want)
        kept_for = self._kept_for(allowed)
        obstacle = Obstacle.KEPT if kept_for else Obstacle.TURN
        return Hindrance(obstacle=obstacle, want=allowed[0].want, kept_for=kept_for)

    def _limited(self, run: Waiting, form: Form, account: Account) -> Hindrance:
        passed = exceeded(account, form.want, form.nodes, types=form.types)
        if passed is not None:
            return _limit(Obstacle.LIMIT, passed, passed.limit, form, passed.name)
        return _limit(Obstacle.USER_LIMIT, self._table.user(run.user), self.policy.user_limit, form, run.user)

    def _kept_for(self, forms: Sequence[Form]) -> tuple[str, ...]:
        """Whose nodes are among those on which it would have room."""
        pool = self._table.pool
        open_at = {
            (pool.nodes[place].engine, pool.nodes[place].name)
            for form in forms
            for group in form.groups
            for place in pool.fitting(form, group)
        }
        return tuple(
            kept.run_id
            for kept in self.reservations.values()
            if any((kept.engine, node) in open_at for node in kept.nodes)
        )

    # ---- what would have to change -----------------------------------------------------------------------------

    def _forms(self, run: Waiting) -> list[Form]:
        return self._table.shape(run).forms

    def lack(self, run: Waiting) -> Lack:
        """Of its first alternative that limits allow."""
        forms = self._table.allowed(run, self._table.shape(run), self.account(run.project)) or self._forms(run)
        if not forms:
            return Lack()
        form, pool = forms[0], self._table.pool
        kinds = {kind for group in form.groups for kind in group}
        suited = [place for place, kind in enumerate(pool.kind_at) if kind in kinds and self._could(place, form)]
        # A gang stays within one engine: nodes of several do not add up.
        with_room = max((len(pool.fitting(form, group)) for group in form.groups), default=0)
        missing = [_missing(pool.room(place), form) for place in suited]
        least = min((some for some in missing if any(some)), default=(0, 0, 0))
        return Lack(
            nodes_with_room=with_room,
            suited=len(suited),
            gpus=least[0],
            cpus=least[1] / 1000,
            memory_bytes=least[2],
        )

    def _could(self, place: int, form: Form) -> bool:
        node = self._table.pool.nodes[place]
        return form.cpus <= node.cpus * 1000 and form.memory <= node.memory_bytes

    def short_nodes(self, run: Waiting) -> list[Short]:
        """The nodes that suit its first alternative and have no room for a share of it."""
        forms = self._forms(run)
        if not forms:
            return []
        form, pool = forms[0], self._table.pool
        kinds = {kind for group in form.groups for kind in group}
        return [
            Short(node=pool.nodes[place], gpus=room[0], cpus=max(0, room[1]) / 1000, memory_bytes=max(0, room[2]))
            for place, kind in enumerate(pool.kind_at)
            if kind in kinds and any(_missing(room := pool.room(place), form))
        ]

    def blockers(self, run: Waiting) -> list[Blocker]:
        """Who has to end until it has room, as far as can be told: the last to end is the last."""
        own = self.reservations.get(run.run_id)
        forms = [form for form in self._forms(run) if not form.part]
        if not forms:
            return []
        pool = self._table.pool
        form, places = forms[0], list[int]()
        if own is not None:
            places = [pool.at[own.engine, node] for node in own.nodes if (own.engine, node) in pool.at]
        else:
            found = self._table.keeper.find_first(forms)
            if found is None:
                return []
            _, form, places = found
        in_the_way: dict[str, Blocker] = {}
        for place in places:
            for blocker in self._in_the_way(place, form):
                before = in_the_way.get(blocker.run.run_id)
                gpus = blocker.gpus + (before.gpus if before is not None else 0)
                in_the_way[blocker.run.run_id] = replace(blocker, gpus=gpus)
        return sorted(in_the_way.values(), key=lambda blocker: (blocker.ends_at, blocker.run.run_id))

    def _in_the_way(self, place: int, form: Form) -> list[Blocker]:
        node = self._table.pool.nodes[place]
        gpus, cpus, memory = self._table.pool.room(place)
        found = []
        for at, run_id in sorted((self.end_of(run), run.run_id) for run in self._on.get((node.engine, node.name), ())):
            if gpus >= form.gpus and cpus >= form.cpus and memory >= form.memory:
                break
            run = self.running[run_id]
            shares = [share for engine, share in holdings(run) if engine == node.engine and share.node == node.name]
            here = sum(len(share.gpu_indices) for share in shares if share.gpu_part >= 1.0)
            gpus += here
            cpus += round(sum(share.cpus for share in shares) * 1000)
            memory += sum(share.memory_bytes for share in shares)
            found.append(Blocker(run=run, ends_at=at, gpus=here))
        return found

    def end_of(self, run: Running) -> float:
        """As the decision takes it."""
        return expected_end(run, self.now, self.policy.grace_s)

    def likely_end(self, run: Running) -> float | None:
        """As runs that ended have told, and no later than it is ended. None: nothing is known of such runs."""
        learned = self.snapshot.learned
        if not isinstance(learned, Learned):
            return run.ends_at
        so_far = lasted(run, self.now)
        lasts_s = learned.lasts(so_far.gpus, so_far.project, so_far.user, so_far.seconds, 0.5)
        likely = self.now + max(0.0, lasts_s - so_far.seconds)
        return likely if run.ends_at is None else min(likely, run.ends_at)

    @cached_property
    def _on(self) -> dict[tuple[str, str], list[Running]]:
        found: dict[tuple[str, str], list[Running]] = {}
        for run in self.running.values():
            for node in {(engine, share.node) for engine, share in holdings(run)}:
                found.setdefault(node, []).append(run)
        return found

    def suited_nodes(self, run: Waiting) -> set[tuple[str, str]]:
        pool = self._table.pool
        kinds = {kind for form in self._forms(run) for group in form.groups for kind in group}
        return {(pool.nodes[at].engine, pool.nodes[at].name) for at, kind in enumerate(pool.kind_at) if kind in kinds}

    def borrowed(self, project: str, resource: str) -> float:
        """What a project holds beyond what is guaranteed to it, or to one above it."""
        account = self.account(project)
        beyond = [
            max(0.0, each.holds(resource) - each.quota[resource]) for each in account.path if resource in each.quota
        ]
        return min(beyond) if beyond else account.holds(resource)


def _carried_out(snapshot: Snapshot, decisions: Decisions, now: float) -> Snapshot:
    starts = {start.run_id: start for start in decisions.starts}
    stopped = {stop.run_id for stop in decisions.stops}
    started = [begun(run, starts[run.run_id], now) for run in snapshot.waiting if run.run_id in starts]
    running = [replace(run, stopping=True) if run.run_id in stopped else run for run in snapshot.running]
    waiting = tuple(run for run in snapshot.waiting if run.run_id not in starts)
    return replace(snapshot, running=(*running, *started), waiting=waiting)


def _limit(obstacle: Obstacle, account: Account, limit: Mapping[str, float], form: Form, holder: str) -> Hindrance:
    """The first of the limits that it would pass."""
    want = form.want
    for resource, most in sorted(limit.items()):
        if not is_within(account, {resource: most}, want, form.nodes, types=form.types):
            held = account.holds(resource)
            return Hindrance(obstacle=obstacle, want=want, holder=holder, resource=resource, held=held, most=most)
    return Hindrance(obstacle=obstacle, want=want, holder=holder)


def _missing(room: tuple[int, int, int], form: Form) -> tuple[int, int, int]:
    gpus, cpus, memory = room
    return max(0, form.gpus - gpus), max(0, form.cpus - cpus), max(0, form.memory - memory)
