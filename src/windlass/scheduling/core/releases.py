"""When room comes back, node by node, and what of it is promised to somebody."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from windlass.scheduling.core.learned import Learned
from windlass.scheduling.core.pool import Pool, Room, milli
from windlass.scheduling.core.shapes import Form
from windlass.scheduling.core.types import Running, size

SHORTEST_S = 60.0  # one that has just started is not thought to end sooner


class Change(NamedTuple):
    """Of the room on a node; less where it is promised. In order of time, what comes back first."""

    at: float
    is_promise: bool
    run_id: str  # empty: of nobody alone
    gpus: int
    cpus: int
    memory: int
    shared: int = -1  # the GPU that comes back with the last of its parts


class Outlook(NamedTuple):
    """How the room on a node changes: in sum until soon, and after that where it is least and who gives some back."""

    soon: Room
    lows: list[tuple[float, Room]]  # in sum since soon: at first, and after each promise
    ends: dict[str, tuple[float, Room]]  # run -> when, and what comes back with it


def expected_end(run: Running, now: float, grace_s: float, learned: Any = None) -> float:
    """Half of those like it have ended by then, as far as was learned; of one about which nothing is known: it goes on
    for as long as it has gone so far."""
    if run.stopping:
        return now + grace_s
    if run.ends_at is not None:
        return max(run.ends_at, now + 1.0)
    if isinstance(learned, Learned):
        gpus = size(run.want) * len(run.placement.shares) or 1.0
        lasted_s = run.attained(now) / gpus
        return now + max(SHORTEST_S, learned.lasts(gpus, run.project, run.user, lasted_s, 0.5) - lasted_s)
    return now + max(SHORTEST_S, now - run.started_at)


class Releases:
    def __init__(self, pool: Pool, running: Iterable[Running], now: float, grace_s: float, learned: Any = None) -> None:
        self._pool = pool
        self._changes: dict[int, list[Change]] = {}
        # (place, GPU) -> whose part of it comes back when, and how large it is
        self._shared: dict[tuple[int, int], dict[str, tuple[float, int]]] = {}
        self.now = now
        self.soon = now + grace_s  # when those that are warned now have gone
        for run in running:
            self._add(run, expected_end(run, now, grace_s, learned))
        for (place, gpu), ends in self._shared.items():
            self._changes[place].append(Change(max(ends.values())[0], False, "", 1, 0, 0, gpu))
        for changes in self._changes.values():
            changes.sort()
        self.soon_at = {place for place, changes in self._changes.items() if changes[0].at <= self.soon}
        self._soon_order = sorted(self.soon_at)
        self._soon_gpus = list(self._soon_order)  # those that may have GPUs then
        self.promised_at: set[int] = set()  # where something was promised
        self._coming_soon: dict[int, Room] = {}  # known already
        # Within a pass the room on a node only becomes less, but where somebody more is stopped.
        self._most_soon: dict[int, Room] = {}
        self._outlooks: dict[int, Outlook] = {}  # known already

    def _add(self, run: Running, at: float) -> None:
        kept = {share.node for share in run.keeps.shares} if run.keeps is not None else ()
        places, engine = self._pool.at, run.placement.engine
        for share in run.placement.shares:
            place = places.get((engine, share.node))
            if place is None or share.node in kept:
                continue
            gpus = len(share.gpu_indices)
            if share.gpu_part < 1.0:
                gpus = 0
                for gpu in share.gpu_indices:
                    self._shared.setdefault((place, gpu), {})[run.run_id] = (at, milli(share.gpu_part))
            change = Change(at, False, run.run_id, gpus, milli(share.cpus), share.memory_bytes)
            self._changes.setdefault(place, []).append(change)

    def hasten(self, run_id: str, places: Collection[int]) -> None:
        """It is stopped on these nodes now."""
        for place in places:
            changes = [
                change._replace(at=self.soon) if change.run_id == run_id else change
                for change in self._changes[place]
                if change.run_id or change.is_promise
            ]
            for (at, gpu), ends in self._shared.items():
                if at == place:
                    if run_id in ends:
                        ends[run_id] = (self.soon, ends[run_id][1])
                    changes.append(Change(max(ends.values())[0], False, "", 1, 0, 0, gpu))
            self._changes[place] = sorted(changes)
            if place not in self.soon_at:
                self.soon_at.add(place)
                insort(self._soon_order, place)
            self._look_again(place)

    def promise(self, place: int, at: float, gpus: int, cpus: int, memory: int) -> Change:
        """So much of what comes back is not for others from then on."""
        change = Change(at, True, "", -gpus, -cpus, -memory)
        insort(self._changes.setdefault(place, []), change)
        self.promised_at.add(place)
        self._coming_soon.pop(place, None)
        self._outlooks.pop(place, None)
        return change

    def take_back(self, place: int, promised: Change) -> None:
        """It is for anybody again."""
        self._changes[place].remove(promised)
        self._look_again(place)

    def _look_again(self, place: int) -> None:
        """There may be more room than was seen."""
        self._coming_soon.pop(place, None)
        self._outlooks.pop(place, None)
        self._most_soon.pop(place, None)
        if place in self.soon_at:
            at = bisect_left(self._soon_gpus, place)
            if at == len(self._soon_gpus) or self._soon_gpus[at] != place:
                self._soon_gpus.insert(at, place)

    def when(self, place: int, form: Form) -> float | None:
        """From when on a node has room for one share, if ever."""
        gpus, cpus, memory = self._pool.room(place)
        gpus, cpus, memory = gpus - form.gpus, cpus - form.cpus, memory - form.memory
        since = self.now if gpus >= 0 and cpus >= 0 and memory >= 0 else None
        for change in self._changes.get(place, ()):
            if change.shared >= 0 and not self._comes_back(place, change.shared):
                continue
            gpus, cpus, memory = gpus + change.gpus, cpus + change.cpus, memory + change.memory
            if gpus < 0 or cpus < 0 or memory < 0:
                since = None
            elif since is None:
                since = change.at
        return since

    def coming(self, place: int, at: float) -> Room:
        """What comes back by then and stays."""
        gpus = cpus = memory = 0
        least: Room | None = None
        for change in self._changes.get(place, ()):
            if change.shared >= 0 and not self._comes_back(place, change.shared):
                continue
            if change.at > at and least is None:
                least = (gpus, cpus, memory)
            gpus, cpus, memory = gpus + change.gpus, cpus + change.cpus, memory + change.memory
            if least is not None:
                least = (min(least[0], gpus), min(least[1], cpus), min(least[2], memory))
        return least if least is not None else (gpus, cpus, memory)

    def shared_until(self, place: int, at: float, gpus: int) -> list[int]:
        """The GPUs in parts that must come back whole by then for so many to be there: none, if others suffice."""
        found = []
        for change in self._changes.get(place, ()):
            if change.at > at or gpus <= 0:
                break
            if change.shared >= 0 and self._comes_back(place, change.shared):
                found.append(change.shared)
            gpus -= change.gpus if change.shared < 0 else 0
        return found if gpus > 0 else []

    @property
    def has_shared(self) -> bool:
        return bool(self._shared)

    def _comes_back(self, place: int, gpu: int) -> bool:
        """Not if somebody starts on a part of it now."""
        return sum(part for _, part in self._shared[place, gpu].values()) >= self._pool.shared(place, gpu)

    def room_soon(self, place: int) -> Room:
        room = self._pool.room(place)
        if place not in self.soon_at:
            return room
        more = self._coming_soon.get(place)
        if more is None:
            more = self.coming(place, self.soon)
            if all(change.shared < 0 for change in self._changes[place]):
                self._coming_soon[place] = more
        return room[0] + more[0], room[1] + more[1], room[2] + more[2]

    def room_without(self, place: int, run_ids: Collection[str]) -> Room:
        """What would be there soon, and stay, were these stopped now: what is promised to somebody comes back sooner
        then, but is no more for it."""
        soon, lows, ends = self._outlook(place)
        later = [ends[run_id] for run_id in run_ids if run_id in ends]
        free, least = self._pool.room(place), None
        for low_at, (gpus, cpus, memory) in lows:
            for at, room in later:
                if at > low_at:
                    gpus, cpus, memory = gpus + room[0], cpus + room[1], memory + room[2]
            if least is None:
                least = (gpus, cpus, memory)
            else:
                least = (min(least[0], gpus), min(least[1], cpus), min(least[2], memory))
        assert least is not None  # there is a first
        return free[0] + soon[0] + least[0], free[1] + soon[1] + least[1], free[2] + soon[2] + least[2]

    def _outlook(self, place: int) -> Outlook:
        found = self._outlooks.get(place)
        if found is not None:
            return found
        changes = self._changes.get(place, ())
        soon, now = (0, 0, 0), (0, 0, 0)
        lows, ends = [(self.soon, now)], {}
        for change in changes:
            if change.shared >= 0 and not self._comes_back(place, change.shared):
                continue
            room = (change.gpus, change.cpus, change.memory)
            if change.at <= self.soon:
                soon = _sum(soon, room)
                continue
            now = _sum(now, room)
            if change.is_promise:
                lows.append((change.at, now))
            elif change.run_id:
                ends[change.run_id] = (change.at, room)
        found = Outlook(soon, lows, ends)
        # A GPU in parts comes back unless somebody starts on one of them.
        if all(change.shared < 0 for change in changes):
            self._outlooks[place] = found
        return found

    def _places_soon(self, gpus: int) -> list[int]:
        """Without those that have no GPU left, where one is wanted."""
        if not gpus:
            return self._soon_order
        order, most = self._soon_gpus, self._most_soon
        while order and (room := most.get(order[0])) is not None and room[0] <= 0:
            del order[0]
        return order

    def fitting_soon(self, form: Form, kinds: Collection[int]) -> list[int]:
        """As many places as a gang needs, if there are: first those that have room for a share once those that were
        warned are gone, then those that have it now."""
        kind_at, most, count = self._pool.kind_at, self._most_soon, form.nodes
        gpus, cpus, memory = form.gpus, form.cpus, form.memory
        found: list[int] = []
        for place in self._places_soon(gpus):
            room = most.get(place)
            if (room is not None and room[0] < gpus) or kind_at[place] not in kinds:
                continue
            room = most[place] = self.room_soon(place)
            if room[0] >= gpus and room[1] >= cpus and room[2] >= memory:
                found.append(place)
                if len(found) == count:
                    return found
        now = [place for place in self._pool.fitting(form, kinds) if place not in self.soon_at]
        return found + now[: count - len(found)]


def _sum(one: Room, other: Room) -> Room:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]
