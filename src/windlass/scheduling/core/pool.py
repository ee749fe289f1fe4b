"""What is left of the nodes while one pass hands it out: kept by room, so that a run finds its place without looking at
every node. Amounts are whole numbers here (thousandths of CPUs and of shared GPUs): taking and giving back is exact.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass

from windlass.core.resources import NodeShare
from windlass.scheduling.core.devices import pick, without
from windlass.scheduling.core.kinds import kinds_of, levels_of
from windlass.scheduling.core.shapes import Form
from windlass.scheduling.core.types import Health, NodeState, Running

Room = tuple[int, int, int]  # GPUs, thousandths of CPUs, bytes
WHOLE = 1000  # a GPU, in thousandths


@dataclass(frozen=True, slots=True)
class Hidden:
    """What of a node is kept for somebody. `parts`: what is left of shared GPUs that are to come back whole."""

    place: int
    gpus: int  # bits
    cpus: int
    memory: int
    parts: dict[tuple[int, int], int]


class Pool:
    """Nodes are known by their place in the order of engine, topology and name: those that are near have places that
    are near."""

    def __init__(self, nodes: Iterable[NodeState]) -> None:
        self.nodes = sorted((node for node in nodes if node.health is not Health.CLOSED), key=_place)
        self.at = {(node.engine, node.name): place for place, node in enumerate(self.nodes)}
        self.cpus = [milli(node.cpus) for node in self.nodes]
        self.memory = [node.memory_bytes for node in self.nodes]
        self.gpus = [(1 << node.gpus) - 1 for node in self.nodes]  # a bit for each that is wholly free
        self.kinds, self.kind_at = kinds_of(self.nodes)
        self._sizes: list[Counter[tuple[int, int]]] = [Counter() for _ in self.kinds]  # CPUs and memory of idle nodes
        for place, kind in enumerate(self.kind_at):
            self._sizes[kind][self.cpus[place], self.memory[place]] += 1
        self._rooms: list[dict[Room, list[int]]] = []
        self._keys: list[list[Room]] = []
        # By kind: (place, GPU) -> thousandths left, if any.
        self._parts: list[dict[tuple[int, int], int]] = [{} for _ in self.kinds]
        self._shared: dict[tuple[int, int], int] = {}  # (place, GPU) -> thousandths held, of GPUs that are shared
        self._levels = levels_of(self.nodes)

    def able(self, form: Form, kind: int) -> int:
        """How many nodes of a kind could hold a share if they were idle."""
        sizes = self._sizes[kind]
        return sum(count for (cpus, memory), count in sizes.items() if form.cpus <= cpus and form.memory <= memory)

    def arrange(self) -> None:
        """After everything that runs is held, and before anything is taken."""
        self._rooms = [{} for _ in self.kinds]
        for place, kind in enumerate(self.kind_at):
            self._rooms[kind].setdefault(self.room(place), []).append(place)
        self._keys = [sorted(rooms) for rooms in self._rooms]

    def room(self, place: int) -> Room:
        return self.gpus[place].bit_count(), self.cpus[place], self.memory[place]

    def hold(self, running: Iterable[Running]) -> None:
        """What live attempts have. Only before `arrange`."""
        by_place: dict[int, list[NodeShare]] = {}
        for run in running:
            for engine, share in holdings(run):
                place = self.at.get((engine, share.node))
                if place is not None:
                    by_place.setdefault(place, []).append(share)
        for place, shares in by_place.items():
            self._hold(place, shares)

    def hold_anew(self, place: int, shares: Iterable[NodeShare]) -> None:
        """These are all that is held of a node now. Only before `arrange`."""
        node, parts = self.nodes[place], self._parts[self.kind_at[place]]
        self.cpus[place], self.memory[place] = milli(node.cpus), node.memory_bytes
        self.gpus[place] = (1 << node.gpus) - 1
        for key in [key for key in self._shared if key[0] == place]:
            del self._shared[key]
            parts.pop(key, None)
        self._hold(place, shares)

    def _hold(self, place: int, shares: Iterable[NodeShare]) -> None:
        """All at once, so that their order does not matter where more is held than there is."""
        whole = count = cpus = memory = 0
        shared: dict[int, int] = {}
        for share in shares:
            cpus += milli(share.cpus)
            memory += share.memory_bytes
            if share.gpu_part < 1.0:
                for gpu in share.gpu_indices:
                    shared[gpu] = shared.get(gpu, 0) + milli(share.gpu_part)
            else:
                count += len(share.gpu_indices)
                for gpu in share.gpu_indices:
                    whole |= 1 << gpu
        self.cpus[place] -= cpus
        self.memory[place] -= memory
        offered = self.gpus[place]
        in_parts = 0
        for gpu in shared:
            in_parts |= 1 << gpu
        beyond = count + len(shared) - (offered & (whole | in_parts)).bit_count()
        self.gpus[place] = without(offered & ~whole & ~in_parts, beyond)
        if shared:
            self._share(place, shared, 0 if beyond > 0 else offered & ~whole)

    def _share(self, place: int, shared: dict[int, int], whole: int) -> None:
        """What is left of GPUs that are shared, if they are there and nobody has them wholly."""
        parts = self._parts[self.kind_at[place]]
        for gpu, held in shared.items():
            self._shared[place, gpu] = held
            if held < WHOLE and whole >> gpu & 1:
                parts[place, gpu] = WHOLE - held

    def copy(self) -> Pool:
        """With what is held, to hand out in one pass."""
        twin = copy(self)
        twin.cpus, twin.memory, twin.gpus = self.cpus.copy(), self.memory.copy(), self.gpus.copy()
        twin._parts = [parts.copy() for parts in self._parts]
        twin._shared = self._shared.copy()
        return twin

    def find(self, form: Form, most: int) -> list[int] | None:
        """Places for a gang of as many nodes as it wants, up to `most`; None if it has no room as a whole."""
        if form.part:
            return self._find_parts(form)
        for kinds in form.groups:
            if form.nodes == 1 and most == 1:
                place = self._first(form, kinds)
                if place is not None:
                    return [place]
                continue
            fitting = self.fitting(form, kinds)
            if len(fitting) >= form.nodes:
                return self._tight(fitting, min(most, len(fitting)))
        return None

    def _first(self, form: Form, kinds: Sequence[int]) -> int | None:
        """Best fit: the fullest node that has room, so that large holes stay whole."""
        cpus, memory = form.cpus, form.memory
        for kind in kinds:
            keys = self._keys[kind]
            for at in range(bisect_left(keys, (form.gpus,)), len(keys)):
                key = keys[at]
                if key[1] >= cpus and key[2] >= memory:
                    return self._rooms[kind][key][0]
        return None

    def fitting(self, form: Form, kinds: Iterable[int]) -> list[int]:
        """All places with room for one share, in order."""
        cpus, memory = form.cpus, form.memory
        found: list[list[int]] = []
        for kind in kinds:
            keys, rooms = self._keys[kind], self._rooms[kind]
            for at in range(bisect_left(keys, (form.gpus,)), len(keys)):
                key = keys[at]
                if key[1] >= cpus and key[2] >= memory:
                    found.append(rooms[key])
        if len(found) == 1:
            return found[0]
        merged = [place for places in found for place in places]
        merged.sort()
        return merged

    def _find_parts(self, form: Form) -> list[int] | None:
        """Shared GPUs that have just enough left come first, then whole ones are opened."""
        for kinds in form.groups:
            places: list[int] = []
            for _, place, _ in sorted(
                (left, place, gpu)
                for kind in kinds
                for (place, gpu), left in self._parts[kind].items()
                if left >= form.part and self.cpus[place] >= form.cpus and self.memory[place] >= form.memory
            ):
                if place not in places:
                    places.append(place)
                if len(places) == form.nodes:
                    return places
            opened = self.fitting(form, kinds)
            fullest = sorted((place for place in opened if place not in places), key=self.room)
            places += fullest[: form.nodes - len(places)]
            if len(places) == form.nodes:
                return places
        return None

    def _tight(self, fitting: list[int], count: int) -> list[int]:
        """The nearest together, in the part of the cluster that has the least room beyond."""
        below: list[tuple[int, int]] | None = None
        for level in self._levels:
            best: tuple[int, int] | None = None
            for low, high in level:
                if high - low < count:
                    continue
                start = bisect_left(fitting, low)
                end = bisect_left(fitting, high, start)
                if end - start >= count and (best is None or end - start < best[1] - best[0]):
                    best = (start, end)
                    if end - start == count:
                        break
            if best is not None:
                return self._spread(fitting[best[0] : best[1]], count, below)
            below = level
        return self._spread(fitting, count, below)

    def _spread(self, places: list[int], count: int, below: list[tuple[int, int]] | None) -> list[int]:
        """`count` of these: over as few parts of the level below as possible; within one, the fullest first."""
        if len(places) == count:
            return places.copy()
        if below is None:
            return sorted(places, key=self.room)[:count]
        parts = []
        for low, high in below:
            start = bisect_left(places, low)
            end = bisect_left(places, high, start)
            if end > start:
                parts.append((start - end, start, end))
        parts.sort()
        chosen: list[int] = []
        for _, start, end in parts:
            chosen += places[start:end]
            if len(chosen) >= count:
                break
        return chosen[:count]

    def take(self, place: int, form: Form) -> NodeShare:
        self.remove(place)
        self.cpus[place] -= form.cpus
        self.memory[place] -= form.memory
        indices: tuple[int, ...] = ()
        part = 1.0
        if form.part:
            indices, part = (self._take_part(place, form.part),), form.want.gpus
        elif form.gpus:
            indices, self.gpus[place] = pick(self.gpus[place], form.gpus)
        self.add(place)
        return NodeShare(
            node=self.nodes[place].name,
            cpus=form.want.cpus,
            memory_bytes=form.memory,
            gpu_indices=indices,
            gpu_part=part,
        )

    def _take_part(self, place: int, part: int) -> int:
        parts = self._parts[self.kind_at[place]]
        open_here = [(left, gpu) for (at, gpu), left in parts.items() if at == place and left >= part]
        if open_here:
            left, gpu = min(open_here)
        else:
            (gpu,), self.gpus[place] = pick(self.gpus[place], 1)
            left = WHOLE
        key = (place, gpu)
        self._shared[key] = WHOLE - left + part
        parts[key] = left - part
        if left == part:
            del parts[key]
        return gpu

    def shared(self, place: int, gpu: int) -> int:
        """How much of a GPU is held in parts, in thousandths."""
        return self._shared.get((place, gpu), 0)

    def hide(self, place: int, gpus: int, cpus: int, memory: int, shared: Collection[int] = ()) -> Hidden:
        """Show only so much of a node from now on: the rest is kept for somebody. Of `shared` GPUs nothing is shown."""
        self.remove(place)
        shown = 0
        if gpus > 0:
            shown = self.gpus[place] ^ pick(self.gpus[place], gpus)[1]
        parts = self._parts[self.kind_at[place]]
        hidden = Hidden(
            place=place,
            gpus=self.gpus[place] & ~shown,
            cpus=self.cpus[place] - cpus,
            memory=self.memory[place] - memory,
            parts={(place, gpu): parts.pop((place, gpu)) for gpu in shared if (place, gpu) in parts},
        )
        self.gpus[place], self.cpus[place], self.memory[place] = shown, cpus, memory
        self.add(place)
        return hidden

    def show(self, hidden: Hidden) -> None:
        place = hidden.place
        self.remove(place)
        self.gpus[place] |= hidden.gpus
        self.cpus[place] += hidden.cpus
        self.memory[place] += hidden.memory
        self._parts[self.kind_at[place]].update(hidden.parts)
        self.add(place)

    def remove(self, place: int) -> None:
        kind, room = self.kind_at[place], self.room(place)
        alike = self._rooms[kind][room]
        if len(alike) == 1:
            del self._rooms[kind][room]
            keys = self._keys[kind]
            del keys[bisect_left(keys, room)]
        else:
            del alike[bisect_left(alike, place)]

    def add(self, place: int) -> None:
        kind, room = self.kind_at[place], self.room(place)
        alike = self._rooms[kind].get(room)
        if alike is None:
            self._rooms[kind][room] = [place]
            insort(self._keys[kind], room)
        else:
            insort(alike, place)


def holdings(run: Running) -> Iterator[tuple[str, NodeShare]]:
    """By engine: what it has, and what it is to have besides when it goes on elsewhere."""
    engine = run.placement.engine
    for share in run.placement.shares:
        yield engine, share
    if run.keeps is not None:
        there = {share.node for share in run.placement.shares}
        for share in run.keeps.shares:
            if share.node not in there or run.keeps.engine != engine:
                yield run.keeps.engine, share


def milli(amount: float) -> int:
    return round(amount * WHOLE)


def _place(node: NodeState) -> tuple[str, tuple[str, ...], str]:
    return node.engine, node.topology, node.name
