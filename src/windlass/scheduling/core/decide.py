"""One pass: who starts where, who makes room for whom, whose room is kept. Pure and deterministic."""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

from windlass.core.resources import Placement
from windlass.scheduling.core.fairness import Account, Accounts, exceeded
from windlass.scheduling.core.order import Queue, queues
from windlass.scheduling.core.pool import Pool
from windlass.scheduling.core.shapes import Form, Shape
from windlass.scheduling.core.types import Decisions, Policy, Snapshot, Start, Waiting, Want


def decide(snapshot: Snapshot, policy: Policy, now: float) -> Decisions:
    return _Pass(snapshot, policy, now).decide()


class _Pass:
    def __init__(self, snapshot: Snapshot, policy: Policy, now: float) -> None:
        self._snapshot = snapshot
        self._policy = policy
        self._now = now
        self._pool = Pool(snapshot.nodes)
        self._accounts = Accounts(snapshot.projects, self._pool.nodes, now, policy.half_life_s)
        for run in snapshot.running:
            self._pool.hold(run.placement)
            self._accounts.charge(
                self._accounts.of(run.project), run.want, run.want.gpu_type, len(run.placement.shares)
            )
        self._pool.arrange()
        self._shapes: dict[tuple[Want, ...], Shape] = {}
        self._shape_of: dict[int, Shape] = {}  # by identity of wants
        self._starts: list[Start] = []
        self._is_over = False

    def decide(self) -> Decisions:
        for level in queues(self._snapshot, self._policy, self._now):
            self._serve(level)
        return Decisions(starts=tuple(self._starts))

    def _serve(self, level: dict[str, Queue]) -> None:
        """Runs of one priority: always the next run of the project that has the least of what it should have."""
        heaps: dict[Account, list[tuple[float, str, Account]]] = {}
        leaves = {self._accounts.of(name): queue for name, queue in level.items()}
        for each in {each for leaf in leaves for each in leaf.path[:-1]}:
            assert each.parent is not None
            heaps.setdefault(each.parent, []).append((self._accounts.score(each), each.name, each))
        for siblings in heaps.values():
            heapify(siblings)
        root = heaps.get(self._accounts.root, [])
        while root and not self._is_over:
            account = root[0][2]
            # A project that has runs of its own and projects below it serves its own first.
            while account not in leaves or leaves[account].is_empty:
                account = heaps[account][0][2]
            self._advance(leaves[account], account)
            self._settle(account, leaves, heaps)

    def _settle(
        self, account: Account, leaves: dict[Account, Queue], heaps: dict[Account, list[tuple[float, str, Account]]]
    ) -> None:
        """Put an account, which is the first of its siblings, and those above it where they belong now."""
        for each in account.path[:-1]:
            assert each.parent is not None
            is_done = (each not in leaves or leaves[each].is_empty) and not heaps.get(each)
            if is_done:
                heappop(heaps[each.parent])
            else:
                heapreplace(heaps[each.parent], (self._accounts.score(each), each.name, each))

    def _advance(self, queue: Queue, account: Account) -> None:
        """Until one of its runs has got something, or none is left."""
        shape_of = self._shape_of
        while (run := queue.next()) is not None:
            shape = shape_of.get(id(run.wants)) or self._shape(run)
            if shape.is_blocked:
                continue
            if self._start(run, shape, account):
                return
            if not self._policy.backfill:
                self._is_over = True
                return

    def _shape(self, run: Waiting) -> Shape:
        shape = self._shapes.get(run.wants)
        if shape is None:
            shape = self._shapes[run.wants] = Shape(run.wants, self._pool)
            shape.is_blocked = not shape.is_possible
        self._shape_of[id(run.wants)] = shape
        return shape

    def _start(self, run: Waiting, shape: Shape, account: Account) -> bool:
        is_held_back = False
        for form in shape.forms:
            if self._accounts.has_limits and exceeded(account, form.want, form.nodes):
                is_held_back = True
                continue
            places = self._pool.find(form, form.nodes)
            if places is not None:
                self._place(run, form, places, account)
                return True
        shape.is_blocked = not is_held_back
        return False

    def _place(self, run: Waiting, form: Form, places: list[int], account: Account) -> None:
        engine = self._pool.nodes[places[0]].engine
        shares = tuple(self._pool.take(place, form) for place in places)
        self._starts.append(Start(run_id=run.run_id, want=form.want, placement=Placement(engine=engine, shares=shares)))
        self._accounts.charge(account, form.want, form.want.gpu_type, len(places))
