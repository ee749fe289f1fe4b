"""Room that is kept for runs which cannot start yet: where they could start first, going by when others are thought to
end. What is kept nobody else gets, but for what is over before it is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from windlass.scheduling.core.pool import Hidden, Pool
from windlass.scheduling.core.releases import Change, Releases
from windlass.scheduling.core.shapes import Form


@dataclass(slots=True)
class Kept:
    """Room on nodes for one run."""

    run_id: str
    at: float
    form: Form
    places: list[int]
    hidden: list[Hidden] = field(default_factory=list)
    promised: list[Change] = field(default_factory=list)


class Keeper:
    """The rooms that are kept in one pass."""

    def __init__(self, pool: Pool, releases: Releases) -> None:
        self._pool = pool
        self._releases = releases
        self.kept: list[Kept] = []

    def find_first(self, forms: Iterable[Form]) -> tuple[float, Form, list[int]] | None:
        """Where it can start first, if ever. Nodes that are idle now are among them: what has come together stays
        together, however wrong the estimates are."""
        best: tuple[float, Form, list[int]] | None = None
        for form in forms:
            for group in form.groups:
                found = self._earliest(form, set(group))
                if found is not None and (best is None or found[0] < best[0]):
                    best = (found[0], form, found[1])
        return best

    def _earliest(self, form: Form, kinds: set[int]) -> tuple[float, list[int]] | None:
        when = self._releases.when
        times = sorted(
            (at, place)
            for place, kind in enumerate(self._pool.kind_at)
            if kind in kinds and (at := when(place, form)) is not None
        )
        if len(times) < form.nodes:
            return None
        chosen = times[: form.nodes]
        return chosen[-1][0], [place for _, place in chosen]

    def find_again(self, form: Form, places: Sequence[int]) -> float | None:
        """When it can start on these nodes, if it can."""
        kinds = {self._pool.kind_at[place] for place in places}
        if form.part or len(places) != form.nodes or not any(kinds <= set(group) for group in form.groups):
            return None
        latest = self._releases.now
        for place in places:
            at = self._releases.when(place, form)
            if at is None:
                return None
            latest = max(latest, at)
        return latest

    def keep(self, run_id: str, form: Form, places: Sequence[int], at: float) -> Kept:
        """Of each node: promise it what comes back by then, and hide what it needs beyond."""
        pool, releases = self._pool, self._releases
        kept = Kept(run_id, at, form, list(places))
        for place in places:
            free, back = pool.room(place), releases.coming(place, at)
            # A node may hold more than it has, beside the load of others: there is nothing to hide then.
            gpus = min(max(0, form.gpus - max(0, back[0])), max(0, free[0]))
            cpus = min(max(0, form.cpus - max(0, back[1])), max(0, free[1]))
            memory = min(max(0, form.memory - max(0, back[2])), max(0, free[2]))
            shared = releases.shared_until(place, at, form.gpus - gpus) if releases.has_shared else ()
            kept.hidden.append(pool.hide(place, free[0] - gpus, free[1] - cpus, free[2] - memory, shared))
            promised = releases.promise(place, at, form.gpus - gpus, form.cpus - cpus, form.memory - memory)
            kept.promised.append(promised)
        self.kept.append(kept)
        return kept

    def let_go(self, kept: Kept) -> None:
        """It is not kept any more."""
        for hidden, promised in zip(kept.hidden, kept.promised, strict=True):
            self._pool.show(hidden)
            self._releases.take_back(hidden.place, promised)
        self.kept.remove(kept)

    def lendable(self, until: float) -> list[Kept]:
        """Rooms that are not needed before then."""
        return [kept for kept in self.kept if kept.at >= until]

    def lend(self, kept: Iterable[Kept]) -> None:
        for each in kept:
            for hidden in each.hidden:
                self._pool.show(hidden)

    def take_back(self, kept: Iterable[Kept]) -> None:
        """What was not taken is hidden again."""
        pool = self._pool
        for each in kept:
            again = []
            for hidden in each.hidden:
                place = hidden.place
                gpus = (pool.gpus[place] & ~hidden.gpus).bit_count()
                cpus = max(min(0, pool.cpus[place]), pool.cpus[place] - hidden.cpus)
                memory = max(min(0, pool.memory[place]), pool.memory[place] - hidden.memory)
                # A GPU that was opened for a part comes back whole only if nobody else has the rest.
                opened = hidden.gpus & ~pool.gpus[place]
                shared = {gpu for _, gpu in hidden.parts} | {
                    gpu for gpu in range(opened.bit_length()) if opened >> gpu & 1
                }
                again.append(pool.hide(place, gpus, cpus, memory, shared))
            each.hidden = again
