"""The state of one pass: what is free, what projects hold, what is decided so far."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

from windlass.core.accelerators import resource_of
from windlass.core.resources import Placement
from windlass.scheduling.core.fairness import Account, Accounts, exceeded, is_covered, is_within, names_types
from windlass.scheduling.core.pool import Pool
from windlass.scheduling.core.preempt import Claim, Sacrifice, Victims, entitlement, is_owed_time
from windlass.scheduling.core.releases import Releases
from windlass.scheduling.core.reserve import Keeper, Kept
from windlass.scheduling.core.shapes import Form, Shape
from windlass.scheduling.core.shares import Shares
from windlass.scheduling.core.types import Policy, Resize, Run, Running, Snapshot, Start, Stop, Waiting, Want


def held_pool(snapshot: Snapshot) -> Pool:
    pool = Pool(snapshot.nodes)
    pool.hold(snapshot.running)
    return pool


def _by_type(types: Iterable[str | None], want: Want) -> dict[str, float]:
    found: dict[str, float] = {}
    for gpu_type in types if want.gpus else ():
        if gpu_type:
            resource = resource_of(gpu_type)
            found[resource] = found.get(resource, 0.0) + want.gpus
    return found


class Table:
    def __init__(self, snapshot: Snapshot, policy: Policy, now: float, pool: Pool | None = None) -> None:
        """`pool`: what is left beside those that run, if that is known already; it is used up."""
        self.snapshot = snapshot
        self.policy = policy
        self.now = now
        self.pool = pool if pool is not None else held_pool(snapshot)
        self.accounts = Accounts(snapshot.projects, (*snapshot.nodes, *snapshot.away), now, policy.half_life_s)
        self.has_user_limits = bool(policy.user_limit)
        self.names_types = self.accounts.names_types or names_types(policy.user_limit)
        self.starts: dict[str, Start] = {}
        self.stops: list[Stop] = []
        self.resizes: list[Resize] = []
        self.shape_of: dict[int, Shape] = {}  # by identity of wants
        self.form_of: dict[str, Form] = {}  # of those that start elastically
        self._shapes: dict[tuple[Want, ...], Shape] = {}
        self._users: dict[str, Account] = {}
        self._types: dict[str, Mapping[str, float]] = {}  # GPUs of those that run, if types are of interest
        self._covered: set[str] = set()  # of those that run
        self._soon_changes = 1  # counts what may bring room soon
        self.lent_in_vain: set[tuple[object, ...]] = set()
        self.kept_before = self._kept_before()
        self.old: set[str] = set()  # whom waiting too long has put first
        self.kept: set[str] = set()  # for whom something is kept in this pass
        self._settle_running()
        self.accounts.tilt(self.wanting)

    def _kept_before(self) -> dict[str, list[int]]:
        found = {}
        for each in self.snapshot.reserved:
            places = [self.pool.at.get((each.engine, name)) for name in each.nodes]
            if None not in places:
                found[each.run_id] = [place for place in places if place is not None]
        return found

    def _settle_running(self) -> None:
        running = list(self.snapshot.running)
        # Also of nodes that are closed: what runs there is held.
        type_at = {(node.engine, node.name): node.gpu_type for node in self.snapshot.nodes} if self.names_types else {}
        if self.accounts.has_quotas:
            # Which of a project's runs its quota covers, if not all: the important ones, then the old ones.
            running.sort(key=lambda run: (-run.priority, run.started_at, run.run_id))
        for run in running:
            account = self.accounts.of(run.project)
            nodes = len(run.placement.shares)
            types = None
            if self.names_types:
                engine = run.placement.engine
                had = (type_at.get((engine, share.node), run.want.gpu_type) for share in run.placement.shares)
                types = self._types[run.run_id] = _by_type(had, run.want)
            if self.accounts.has_quotas and is_covered(account, run.want, nodes, types):
                self._covered.add(run.run_id)
            self.charge(account, run.user, run.want, nodes, types=types)
        self.pool.arrange()

    def charge(
        self,
        account: Account,
        user: str,
        want: Want,
        nodes: int,
        runs: int = 1,
        types: Mapping[str, float] | None = None,
    ) -> None:
        self.accounts.charge(account, want, nodes, runs, types)
        if self.has_user_limits:
            self.accounts.charge(self.user(user), want, nodes, runs, types)

    def types_of(self, run: Running) -> Mapping[str, float] | None:
        return self._types.get(run.run_id)

    def types_at(self, places: Iterable[int], want: Want) -> Mapping[str, float] | None:
        """GPUs by type, if that is of interest."""
        if not self.names_types:
            return None
        return _by_type((self.pool.nodes[place].gpu_type for place in places), want)

    def user(self, name: str) -> Account:
        account = self._users.get(name)
        if account is None:
            account = self._users[name] = Account(name, None, None, 0.0)
        return account

    @cached_property
    def releases(self) -> Releases:
        return Releases(self.pool, self.snapshot.running, self.now, self.policy.grace_s, self.snapshot.learned)

    @cached_property
    def keeper(self) -> Keeper:
        return Keeper(self.pool, self.releases)

    @property
    def has_keeper(self) -> bool:
        return "keeper" in self.__dict__

    @cached_property
    def victims(self) -> Victims:
        ranks = {}
        if self.policy.index_margin is not None:
            rank, learned = self.policy.rank, self.snapshot.learned
            ranks = {
                run.run_id: rank(run, learned, self.now)
                for run in self.snapshot.running
                if not is_owed_time(run, self.policy, self.now)
            }
        accounts = self.accounts if self.shares is not None else None
        return Victims(
            self.pool, self.snapshot.running, self._covered, ranks, self.policy, self.now, self.shares, accounts
        )

    @cached_property
    def shares(self) -> Shares | None:
        """None: nobody is displaced for them."""
        if not self.policy.preempts_for_shares or len(self.wanting) < 2:
            return None
        return Shares(self.accounts, self.wanting)

    @cached_property
    def wanting(self) -> list[Account]:
        """Projects that have runs."""
        runs: tuple[Run, ...] = (*self.snapshot.running, *self.snapshot.waiting)
        return [self.accounts.of(name) for name in {run.project for run in runs}]

    def shape(self, run: Waiting) -> Shape:
        shape = self._shapes.get(run.wants)
        if shape is None:
            shape = self._shapes[run.wants] = Shape(run.wants, self.pool, by_type=self.names_types)
            shape.share = self.accounts.share_of(run.wants[0])
        self.shape_of[id(run.wants)] = shape
        return shape

    def share_of(self, run: Waiting) -> float:
        shape = self.shape_of.get(id(run.wants)) or self.shape(run)
        return shape.share

    def is_covered(self, shape: Shape, account: Account) -> bool:
        return any(is_covered(account, form.want, form.nodes, form.types) for form in shape.forms)

    def allowed(self, run: Waiting, shape: Shape, account: Account, *, covered_only: bool = False) -> Sequence[Form]:
        """The alternatives that limits leave it, and its quota, where only that counts now."""
        if not (covered_only or self.accounts.has_limits or self.has_user_limits):
            return shape.forms
        return [
            form
            for form in shape.forms
            if not (covered_only and not is_covered(account, form.want, form.nodes, form.types))
            and not self.exceeds(account, run.user, form.want, form.nodes, types=form.types)
        ]

    def exceeds(
        self,
        account: Account,
        user: str,
        want: Want,
        nodes: int,
        runs: int = 1,
        types: Collection[str] | None = None,
    ) -> bool:
        """A limit."""
        if self.accounts.has_limits and exceeded(account, want, nodes, runs, types) is not None:
            return True
        limit = self.policy.user_limit
        return self.has_user_limits and not is_within(self.user(user), limit, want, nodes, runs, types)

    def has_room(self, forms: Sequence[Form]) -> bool:
        return any(self.pool.find(form, form.nodes) is not None for form in forms)

    def start(self, run: Waiting, shape: Shape, forms: Sequence[Form], account: Account) -> bool:
        """If there is room now."""
        for form in forms:
            places = self.pool.find(form, form.nodes)
            if places is not None:
                self._place(run, form, places, account)
                return True
        shape.is_blocked = len(forms) == len(shape.forms)
        return False

    def start_where_it_was(self, run: Waiting, forms: Sequence[Form], account: Account) -> bool:
        """On the very nodes that it had, if they have room now."""
        shares = run.before.shares if run.before is not None else ()
        for form in forms:
            kinds = {kind for group in form.groups for kind in group}
            found = [self.pool.at.get((run.before.engine, share.node)) for share in shares] if run.before else []
            places = [place for place in found if place is not None and self.pool.kind_at[place] in kinds]
            if form.part or len(places) != len(shares) or not form.nodes <= len(places) <= form.most:
                continue
            rooms = [self.pool.room(place) for place in places]
            if all(gpus >= form.gpus and cpus >= form.cpus and free >= form.memory for gpus, cpus, free in rooms):
                self._place(run, form, places, account)
                return True
        return False

    def _place(self, run: Waiting, form: Form, places: list[int], account: Account) -> None:
        if run.before is not None:
            places = self._as_before(run.before, form, places)
        engine = self.pool.nodes[places[0]].engine
        shares = tuple([self.pool.take(place, form) for place in places])
        placement = Placement(engine=engine, shares=shares)
        self.starts[run.run_id] = Start(run_id=run.run_id, want=form.want, placement=placement)
        if form.most > form.nodes:
            self.form_of[run.run_id] = form
        self.charge(account, run.user, form.want, len(places), types=self.types_at(places, form.want))

    def _as_before(self, before: Placement, form: Form, places: list[int]) -> list[int]:
        """Nodes that it had keep their rank: what it left there is worth going back to."""
        engine = self.pool.nodes[places[0]].engine
        if before.engine != engine or form.part:
            return places
        kinds = {self.pool.kind_at[place] for place in places}
        ranks: list[int | None] = [None] * len(places)
        for rank, share in enumerate(before.shares[: len(places)]):
            place = self.pool.at.get((engine, share.node))
            if place is not None and self.pool.kind_at[place] in kinds and place not in ranks:
                gpus, cpus, memory = self.pool.room(place)
                if gpus >= form.gpus and cpus >= form.cpus and memory >= form.memory:
                    ranks[rank] = place
        others = iter([place for place in places if place not in ranks])
        return [place if place is not None else next(others) for place in ranks]

    def start_in_kept(self, run: Waiting, shape: Shape, forms: Sequence[Form], account: Account, until: float) -> bool:
        """In room that is kept for others who do not need it before then."""
        kept = self.keeper.lendable(until)
        if not kept or (shape, len(kept)) in self.lent_in_vain:
            return False
        has_started = self.start_in(kept, run, shape, forms, account)
        # Within one pass there is less and less room: what did not fit once does not fit later.
        if not has_started and len(forms) == len(shape.forms):
            self.lent_in_vain.add((shape, len(kept)))
        return has_started

    def start_in(self, kept: list[Kept], run: Waiting, shape: Shape, forms: Sequence[Form], account: Account) -> bool:
        self.keeper.lend(kept)
        was_blocked = shape.is_blocked
        has_started = self.start(run, shape, forms, account)
        shape.is_blocked = was_blocked
        self.keeper.take_back(kept)
        return has_started

    def make_room(
        self, run: Waiting, shape: Shape, forms: Sequence[Form], account: Account, *, covered_only: bool
    ) -> bool:
        """Have others stopped for it, or wait for those who are stopping already."""
        if self.wait_for_room(run, shape, forms, account):
            return True
        if not self.policy.preempts or len(self.stops) >= self.policy.most_stops:
            return False
        claim = self.claim(run, is_covered=covered_only)
        if self.victims.are_hopeless(claim):
            return False
        sacrifice = self.victims.choose(claim, forms, self.releases)
        if sacrifice is None:
            return False
        self.sacrifice(claim, sacrifice)
        self.keep_soon(run, sacrifice.form, sacrifice.places, account)
        return True

    def claim(self, run: Waiting, *, is_covered: bool) -> Claim:
        account = self.accounts.of(run.project)
        is_owed = self.shares is not None and self.shares.is_owed(account, self.share_of(run))
        return Claim(
            run_id=run.run_id,
            project=run.project,
            priority=run.priority,
            is_covered=is_covered,
            rank=self.policy.rank(run, self.snapshot.learned, self.now),
            account=account if is_owed else None,
            is_old=run.run_id in self.old,
            part=self.share_of(run),
        )

    def wait_for_room(self, run: Waiting, shape: Shape, forms: Sequence[Form], account: Account) -> bool:
        if not self.releases.soon_at or shape.soon_changes == self._soon_changes:
            return False
        for form in forms:
            for group in form.groups:
                found = self.releases.fitting_soon(form, group)
                if len(found) >= form.nodes:
                    self.keep_soon(run, form, found, account)
                    return True
        if len(forms) == len(shape.forms):
            shape.soon_changes = self._soon_changes
        return False

    def keep_soon(self, run: Waiting, form: Form, places: list[int], account: Account) -> None:
        self.keep(run, form, places, self.releases.soon, account)

    def keep(self, run: Waiting, form: Form, places: list[int], at: float, account: Account) -> Kept:
        """What it has soon counts as had. What it has later does not: its project would wait for it with less."""
        if at <= self.releases.soon:
            self.charge(account, run.user, form.want, form.nodes, types=self.types_at(places, form.want))
        self.kept.add(run.run_id)
        return self.keeper.keep(run.run_id, form, places, at)

    def sacrifice(self, claim: Claim, sacrifice: Sacrifice) -> None:
        smaller: dict[str, list[int]] = {}
        by_id: dict[str, Running] = {}
        for victim in sacrifice.victims:
            run = victim.run
            self.releases.hasten(run.run_id, victim.pieces)
            if victim.share is not None:
                smaller.setdefault(run.run_id, []).append(victim.share)
                by_id[run.run_id] = run
                continue
            cause = entitlement(claim, victim, self.policy, self.shares)
            assert cause is not None
            self.stops.append(Stop(run_id=run.run_id, by=claim.run_id, cause=cause, lost=victim.lost))
        for run_id, gone in smaller.items():
            placement = by_id[run_id].placement
            shares = tuple(share for rank, share in enumerate(placement.shares) if rank not in gone)
            left = Placement(engine=placement.engine, shares=shares)
            self.resizes.append(Resize(run_id=run_id, placement=left, by=claim.run_id))
        self.victims.stop(sacrifice.victims)
        self._soon_changes += 1

    def reserve(self, run: Waiting, forms: Sequence[Form], account: Account) -> bool:
        # A part of a GPU is had as soon as anything ends.
        found = self.find_before(run, forms) or self.keeper.find_first([form for form in forms if not form.part])
        if found is None:
            return False
        at, form, places = found
        self.keep(run, form, places, at, account)
        return True

    def find_before(self, run: Waiting, forms: Sequence[Form]) -> tuple[float, Form, list[int]] | None:
        """On the nodes that were kept for it in the last pass: what has come together there stays together."""
        places = self.kept_before.get(run.run_id, [])
        for form in forms if places else ():
            at = self.keeper.find_again(form, places)
            if at is not None:
                return at, form, places
        return None
