"""What the last pass kept: kept again before others have their turn, until the turn of its project comes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from windlass.scheduling.core.fairness import Account
from windlass.scheduling.core.reserve import Kept
from windlass.scheduling.core.shapes import Form, Shape
from windlass.scheduling.core.table import Table
from windlass.scheduling.core.types import Waiting


class Carried:
    def __init__(self, table: Table) -> None:
        self._table = table
        self._of: dict[Account, dict[str, tuple[Waiting, Kept]]] = {}  # by project and run

    @cached_property
    def _least(self) -> int:
        """The lowest priority of all that wait."""
        return min(run.priority for run in self._table.snapshot.waiting)

    def carry(self, runs: Iterable[Waiting], *, covered_only: bool) -> list[str]:
        """What the last pass kept for these is kept again before others have their turn: not for the run alone, but
        for its project, whose order may have changed. Those whose room comes together only later."""
        table = self._table
        found = []
        for run in runs:
            shape, account = table.shape(run), table.accounts.of(run.project)
            if run.run_id in table.starts or run.run_id in table.kept:
                continue
            again = table.find_before(run, table.allowed(run, shape, account, covered_only=covered_only))
            if again is not None:
                at, form, places = again
                if at > table.releases.soon and not self.may_gather(run, shape, account):
                    continue
                kept = table.keep(run, form, places, at, account)
                self._of.setdefault(account, {})[run.run_id] = (run, kept)
                if at > table.releases.soon:
                    found.append(run.run_id)
        return found

    def may_gather(self, run: Waiting, shape: Shape, account: Account) -> bool:
        """Where projects contend, room comes together only for those that have less than is due to them: for the others
        it would be idle that they may have too much. But one that has waited too long has it in any case."""
        table = self._table
        if table.shares is None or run.queued_at <= table.now - table.policy.ageing_s:
            return True
        if run.priority > self._least:
            return True  # those below it are not to take it
        return table.shares.is_owed(account, shape.share)

    def let_go(self, run_id: str, account: Account) -> bool:
        """Whether something was kept for it: it is not any more."""
        table = self._table
        run, kept = self._of.get(account, {}).pop(run_id, (None, None))
        if run is None or kept is None:
            return False
        table.keeper.let_go(kept)
        table.kept.discard(run_id)
        if kept.at > table.releases.soon:
            return True
        types = table.types_at(kept.places, kept.form.want)
        back = None if types is None else {resource: -amount for resource, amount in types.items()}
        table.charge(account, run.user, kept.form.want, -kept.form.nodes, -1, back)
        return True

    def start_in_own(self, run: Waiting, shape: Shape, forms: Sequence[Form], account: Account) -> bool:
        """In room that is kept for others of its project, who come after it."""
        table = self._table
        own = self._of.get(account)
        if not own or (shape, account, len(own)) in table.lent_in_vain:
            return False
        kept = [each for _, each in own.values()]
        if not table.start_in(kept, run, shape, forms, account):
            table.lent_in_vain.add((shape, account, len(own)))
            return False
        engine = table.starts[run.run_id].placement.engine
        taken = {table.pool.at[engine, share.node] for share in table.starts[run.run_id].placement.shares}
        for run_id in [run_id for run_id, (_, each) in own.items() if taken.intersection(each.places)]:
            self.let_go(run_id, account)
        return True

    def hand_over(self, run: Waiting, shape: Shape, account: Account) -> str | None:
        """What is kept for another of its project that wants the same is for this one, which comes before it."""
        table = self._table
        if run.run_id in table.kept_before:
            return None
        for run_id, (other, kept) in self._of.get(account, {}).items():
            if table.shape(other) is shape:
                table.kept_before[run.run_id] = kept.places
                self.let_go(run_id, account)
                return run_id
        return None
