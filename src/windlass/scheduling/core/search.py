"""Which of those that may be stopped leave a node, or several, so that a share fits on each: those that lose least."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import fsum

from windlass.scheduling.core.fairness import Account
from windlass.scheduling.core.pool import Pool
from windlass.scheduling.core.releases import Releases
from windlass.scheduling.core.shapes import Form
from windlass.scheduling.core.types import Running

MOST_TRIED = 10  # victims on one node: beyond that, a good set will do


@dataclass(frozen=True, slots=True)
class Piece:
    """What comes back on one node. `parts`: thousandths of GPUs that are shared, by index."""

    gpus: int
    cpus: int
    memory: int
    parts: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Victim:
    """A running gang, or, if `share` is given, one node of an elastic one that could go on without it."""

    run: Running
    lost: float
    is_covered: bool
    rank: float
    pieces: dict[int, Piece]
    share: int | None = None
    account: Account | None = None
    part: float = 0.0  # of the cluster


class Search:
    """Nodes by what it costs to make room on each; that falls on all nodes of a gang once it is chosen."""

    def __init__(
        self,
        pool: Pool,
        form: Form,
        releases: Releases,
        at: dict[int, list[Victim]],
        given: Collection[Victim],
    ) -> None:
        self._pool = pool
        self._form = form
        self._releases = releases
        self._at = at
        self._given = frozenset(given)
        self.allowed: set[Victim] = set(given)
        self.chosen: set[Victim] = set(given)
        self.costs: dict[int, float] = {}
        self._spread = 1  # on how many nodes at most what a gang loses counts as shared out

    def look(self, place: int) -> None:
        found = self._cheapest(place)
        if found is not None:
            self.costs[place] = fsum(
                victim.lost / min(self._spread, len(victim.pieces)) for victim in found if victim not in self.chosen
            )

    def is_settled(self, missing: int, bound: float) -> bool:
        """Whether enough nodes cost no more than the next victim alone."""
        return sum(cost <= bound for cost in self.costs.values()) >= missing

    def open(self, missing: int, spread: int) -> tuple[list[int], list[Victim]] | None:
        """On as many nodes, the cheapest first. With `spread`, gangs are cheap that are in the way on several."""
        if len(self.costs) < missing:
            return None
        if spread > 1:
            self._spread = spread
            self.chosen = set(self._given)
            for place in self.costs:
                self.look(place)
        heap = [(cost, place) for place, cost in self.costs.items()]
        heapify(heap)
        places: list[int] = []
        while heap and len(places) < missing:
            cost, place = heappop(heap)
            if place in places or cost != self.costs[place]:
                continue
            found = self._least(place, self._cheapest(place) or set())
            places.append(place)
            for victim in found:
                if victim not in self.chosen:
                    self.chosen.add(victim)
                    for other in victim.pieces:
                        if other in self.costs and other not in places:
                            self.look(other)
                            heappush(heap, (self.costs[other], other))
        if len(places) < missing:
            return None
        return places, self._pruned(places)

    def _pruned(self, places: list[int]) -> list[Victim]:
        """Without those who are not needed after all, the most costly first."""
        needed = set(self.chosen)
        for victim in sorted(
            self.chosen - self._given, key=lambda victim: (-victim.lost, victim.run.run_id, victim.share or 0)
        ):
            without = needed - {victim}
            if all(self._fits(place, without) for place in victim.pieces if place in places):
                needed = without
        stopped = {victim.run.run_id for victim in needed if victim.share is None}
        left = [victim for victim in needed if victim.share is None or victim.run.run_id not in stopped]
        return sorted(left, key=lambda victim: (victim.run.run_id, victim.share or 0))

    def _cheapest(self, place: int) -> set[Victim] | None:
        """Victims on a node that make room for one share; of those that are chosen already nothing is lost more."""
        here = [victim for victim in self._at[place] if victim in self.allowed]
        if not self._fits(place, set(here)):
            return None
        free = {victim for victim in here if victim in self.chosen}
        if self._fits(place, free):
            return free
        others = [victim for victim in here if victim not in self.chosen]  # the least lost first
        single = next((victim for victim in others if self._fits(place, free | {victim})), None)
        several = set(free)
        for victim in others:
            several.add(victim)
            if self._fits(place, several):
                break
        for victim in reversed(others):
            if victim in several and self._fits(place, several - {victim}):
                several.discard(victim)
        if single is None or fsum(victim.lost for victim in several - free) < single.lost:
            return several
        return free | {single}

    def _least(self, place: int, found: set[Victim]) -> set[Victim]:
        """The best of all sets on a node, if they are few enough to try; `found` is a good one."""
        others = [victim for victim in self._at[place] if victim in self.allowed and victim not in self.chosen]
        if len(others) > MOST_TRIED or len(others) < 2:
            return found
        chosen = found & self.chosen
        best, least = found, fsum(victim.lost for victim in found - self.chosen)
        # Sets are grown in the order of their members; whatever is no better already is not grown further.
        growing: list[tuple[float, int, frozenset[Victim]]] = [(0.0, 0, frozenset())]
        while growing:
            lost, start, some = growing.pop()
            for at in range(start, len(others)):
                more = lost + others[at].lost
                if more >= least:
                    break  # the others lose no less
                these = some | {others[at]}
                if self._fits(place, chosen | these):
                    best, least = chosen | these, more
                else:
                    growing.append((more, at + 1, these))
        return set(best)

    def _fits(self, place: int, victims: set[Victim]) -> bool:
        if place in self._releases.promised_at:
            run_ids = {victim.run.run_id for victim in victims if place in victim.pieces}
            gpus, cpus, memory = self._releases.room_without(place, run_ids)
            return gpus >= self._form.gpus and cpus >= self._form.cpus and memory >= self._form.memory
        gpus, cpus, memory = self._releases.room_soon(place)
        parts: dict[int, int] = {}
        counted: set[str] = set()
        for victim in victims:
            piece = victim.pieces.get(place)
            # A node of an elastic run and the run itself are the same room.
            if piece is None or victim.run.run_id in counted:
                continue
            counted.add(victim.run.run_id)
            gpus, cpus, memory = gpus + piece.gpus, cpus + piece.cpus, memory + piece.memory
            for gpu, part in piece.parts:
                parts[gpu] = parts.get(gpu, 0) + part
        gpus += sum(part >= self._pool.shared(place, gpu) for gpu, part in parts.items())
        return gpus >= self._form.gpus and cpus >= self._form.cpus and memory >= self._form.memory
