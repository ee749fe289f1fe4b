"""Walking over links in both directions from one thing. Pure: who is linked with whom is asked of `Links`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from windlass.wire.lineage import Link, ThingKind


class Key(NamedTuple):
    kind: ThingKind
    id: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}" if self.kind is not ThingKind.RUN else self.id


def dataset_key(name: str, digest: str) -> Key:
    """The same for all experiments, each of which has a row of its own for it."""
    return Key(ThingKind.DATASET, f"{name}@{digest}")


def dataset_names(key_id: str) -> list[tuple[str, str]]:
    """Name and digest; every way to read it where these have an `@` too."""
    places = [place for place, sign in enumerate(key_id) if sign == "@"]
    return [(key_id[:place], key_id[place + 1 :]) for place in places]


class Edge(NamedTuple):
    source: Key
    target: Key
    how: str

    def as_link(self) -> Link:
        return Link(source=str(self.source), target=str(self.target), how=self.how)


class Links(Protocol):
    def sources(self, keys: Sequence[Key]) -> Iterable[Edge]:
        """Edges that lead to them."""

    def targets(self, keys: Sequence[Key]) -> Iterable[Edge]:
        """Edges that lead from them."""


def walk(links: Links, root: Key, *, most: int) -> tuple[list[Key], list[Edge], bool]:
    """Whatever `root` came from and whatever came from it, nearest first; not its cousins: what else came from its
    sources is another story. True: there is more."""
    found: dict[Key, None] = {root: None}
    edges: dict[Edge, None] = {}
    is_more = False
    for up in (True, False):
        front = [root]
        while front:
            near = list(links.sources(front) if up else links.targets(front))
            front = []
            for edge in near:
                other = edge.source if up else edge.target
                if other not in found and len(found) >= most:
                    is_more = True
                    continue
                edges[edge] = None
                if other not in found:
                    found[other] = None
                    front.append(other)
    return list(found), list(edges), is_more
