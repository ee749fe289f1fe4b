"""One pass: who starts where, who makes room for whom, whose room is kept. Pure and deterministic."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.scheduling.core.carry import Carried
from windlass.scheduling.core.elastic import grow
from windlass.scheduling.core.exchange import exchange
from windlass.scheduling.core.fairness import Account
from windlass.scheduling.core.order import Queue, find_starving, queues
from windlass.scheduling.core.shapes import Form, Shape
from windlass.scheduling.core.table import Table
from windlass.scheduling.core.turns import Turns
from windlass.scheduling.core.types import Decisions, Policy, Reservation, Snapshot, Waiting


def decide(snapshot: Snapshot, policy: Policy, now: float) -> Decisions:
    return decide_at(Table(snapshot, policy, now))


def decide_at(table: Table) -> Decisions:
    return _Pass(table).decide()


class _Pass:
    def __init__(self, table: Table) -> None:
        self._table = table
        self._policy = table.policy
        self._carried = Carried(table)
        self._done: set[str] = set()  # runs that had their turn out of turn
        self._reserved: set[str] = set()  # runs whose room comes together only later
        self._tries = 2 * table.policy.reservations
        self._is_over = False
        self._is_alone = True  # only one project has runs that wait

    def decide(self) -> Decisions:
        table, policy = self._table, self._policy
        self._serve_starving()
        levels = queues(table.snapshot, policy, table.now, table.old)
        if table.accounts.has_quotas:
            for priority, level in levels.items():
                self._serve_guaranteed(priority, level)
        for priority, level in levels.items():
            self._serve_interrupted(priority, where_they_were=True)
            self._carry(priority, covered_only=False)
            self._serve_interrupted(priority, where_they_were=False)
            self._serve(level, covered_only=False)
        resizes = [*table.resizes, *grow(table)]
        reservations = []
        for kept in table.keeper.kept if table.has_keeper else ():
            nodes = [table.pool.nodes[place] for place in kept.places]
            names = tuple(node.name for node in nodes)
            reservations.append(Reservation(run_id=kept.run_id, at=kept.at, engine=nodes[0].engine, nodes=names))
        return Decisions(
            starts=tuple(table.starts.values()),
            stops=tuple(table.stops),
            resizes=tuple(resizes),
            reservations=tuple(reservations),
        )

    def _serve_interrupted(self, priority: int, *, where_they_were: bool) -> None:
        """They go on in the room that they had, or else in any that is free and kept for nobody: what broke is not to
        cost them their turn."""
        table = self._table
        back = [run for run in table.snapshot.waiting if run.interrupted and run.priority == priority]
        for run in sorted(back, key=lambda run: (run.submitted_at, run.run_id)):
            shape, account = table.shape(run), table.accounts.of(run.project)
            if run.run_id in self._done or run.run_id in table.starts:
                continue
            self._carried.let_go(run.run_id, account)
            forms = table.allowed(run, shape, account)
            if where_they_were:
                is_back = table.start_where_it_was(run, forms, account)
            else:
                is_back = bool(forms) and not shape.is_blocked and table.start(run, shape, forms, account)
            if is_back:
                self._done.add(run.run_id)

    def _serve_starving(self) -> None:
        """The first of them that could run at all, and that no limit of its own holds back. What a quota covers may
        take back what others borrowed, as it could in its turn."""
        table = self._table
        for run in find_starving(table.snapshot, self._policy, table.now):
            shape, account = table.shape(run), table.accounts.of(run.project)
            if run.run_id in self._done or not shape.is_possible or not table.allowed(run, shape, account):
                continue
            table.old.add(run.run_id)
            is_covered = table.accounts.has_quotas and table.is_covered(shape, account)
            if (is_covered and self._consider(run, shape, Queue([]), account, covered_only=True)) or self._consider(
                run, shape, Queue([]), account, covered_only=False
            ):
                self._done.add(run.run_id)
            return

    def _carry(self, priority: int, *, covered_only: bool) -> None:
        """What the last pass kept stays kept, but for those that come before: each has its own time."""
        # Where nobody overtakes, nobody need keep anything.
        before = self._table.kept_before if self._policy.backfill else {}
        runs = [
            run
            for run in (self._table.snapshot.waiting if before else ())
            if run.run_id in before and run.priority == priority and run.run_id not in self._done
        ]
        at = {each.run_id: each.at for each in self._table.snapshot.reserved}
        runs.sort(key=lambda run: (at[run.run_id], run.run_id))
        self._reserved |= set(self._carried.carry(runs[: self._policy.most_stops], covered_only=covered_only))

    def _serve_guaranteed(self, priority: int, level: dict[str, Queue]) -> None:
        """What quotas cover comes before what is borrowed, whatever its priority."""
        of = self._table.accounts.of
        self._carry(priority, covered_only=True)
        covered = {name: queue for name, queue in level.items() if any(each.quota for each in of(name).path)}
        self._serve(covered, covered_only=True)
        for queue in covered.values():
            queue.rewind()

    def _serve(self, level: dict[str, Queue], *, covered_only: bool) -> None:
        turns = Turns(self._table.accounts, level, self._table.share_of)
        self._is_alone = len(level) == 1
        while not self._is_over and (turn := turns.next()) is not None:
            account, queue = turn
            self._advance(queue, account, covered_only=covered_only)
            turns.settle(account)

    def _advance(self, queue: Queue, account: Account, *, covered_only: bool) -> None:
        """Until one of its runs has got something, or none is left."""
        shape_of, done, settled = self._table.shape_of, self._done, queue.settled
        by_user = self._table.has_user_limits
        while (run := queue.next()) is not None:
            shape = shape_of.get(id(run.wants)) or self._table.shape(run)
            is_settled = shape in settled or (by_user and (shape, run.user) in settled)
            if is_settled and (run.longest_s is None or not self._table.has_keeper):
                continue
            if run.run_id in done or not shape.is_possible:
                continue
            # What was kept for it is its own: it must not count against its quota and its limits once more.
            was_kept = self._carried.let_go(run.run_id, account)
            if covered_only and (shape in queue.uncovered or not self._table.is_covered(shape, account)):
                queue.uncovered.add(shape)
                queue.defer(run)
                continue
            has_some = self._consider(run, shape, queue, account, covered_only=covered_only, was_kept=was_kept)
            if not self._policy.backfill and run.run_id not in self._table.starts:
                # One that only a limit holds back is no reason for others to wait.
                self._is_over = bool(self._table.allowed(run, shape, account))
            if has_some or self._is_over:
                return

    def _consider(
        self,
        run: Waiting,
        shape: Shape,
        queue: Queue,
        account: Account,
        *,
        covered_only: bool,
        was_kept: bool = False,
    ) -> bool:
        """Whether it gets something: a start, the room of those who make room for it, or a reservation. `was_kept`: the
        last pass kept room for it, which it has let go for this."""
        table = self._table
        forms = table.allowed(run, shape, account, covered_only=covered_only)
        # What the limits of one user leave says nothing of the others.
        key = (shape, run.user) if table.has_user_limits and len(forms) < len(shape.forms) else shape
        if not forms:
            if exchange(table, run, shape, account):
                return True
            queue.settled.add(key)
            return False
        if shape in queue.settled or key in queue.settled:
            return self._borrow(run, shape, forms, account)
        if covered_only and len(forms) < len(shape.forms) and not table.has_room(forms):
            others = table.allowed(run, shape, account)
            if table.has_room(others):
                # Rather than have somebody stopped it borrows, when that has its turn.
                queue.uncovered.add(shape)
                queue.defer(run)
                return False
        if was_kept:
            self._reserved.discard(run.run_id)
        if (
            ((was_kept or not shape.is_blocked) and table.start(run, shape, forms, account))
            or (self._is_alone and self._carried.start_in_own(run, shape, forms, account))
            or self._borrow(run, shape, forms, account)
            or table.make_room(run, shape, forms, account, covered_only=covered_only)
            or self._reserve(run, shape, forms, account)
        ):
            # One that has waited too long is in its queue twice.
            if run.queued_at <= table.now - self._policy.ageing_s:
                self._done.add(run.run_id)
            return True
        if covered_only and len(forms) < len(shape.forms):
            queue.uncovered.add(shape)
            queue.defer(run)
        else:
            queue.settled.add(key)
        return False

    def _borrow(self, run: Waiting, shape: Shape, forms: Sequence[Form], account: Account) -> bool:
        """What is over before a reserved start does not delay it."""
        if run.longest_s is None or not self._table.has_keeper:
            return False
        return self._table.start_in_kept(run, shape, forms, account, self._table.now + run.longest_s)

    def _reserve(self, run: Waiting, shape: Shape, forms: Sequence[Form], account: Account) -> bool:
        other = self._carried.hand_over(run, shape, account)
        if other is not None:
            self._reserved.discard(other)
        elif len(self._reserved) >= self._policy.reservations or not self._tries:
            return False
        if not self._carried.may_gather(run, shape, account):
            return False
        self._tries -= 1
        if not self._table.reserve(run, forms, account):
            return False
        self._reserved.add(run.run_id)
        return True
