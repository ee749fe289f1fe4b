"""Walking from one thing to what it came from and what came from it."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.cli.lineage import render_tree
from windlass.cli.terminal import Paint
from windlass.lineage.walk import Edge, Key, walk
from windlass.wire.lineage import Lineage, Thing, ThingKind


def run(name: str) -> Key:
    return Key(ThingKind.RUN, name)


class Drawn:
    """`a>b` says that b came from a."""

    def __init__(self, *links: str) -> None:
        self.edges = [Edge(run(source), run(target), "made") for source, target in (link.split(">") for link in links)]

    def sources(self, keys: Sequence[Key]) -> list[Edge]:
        return [edge for edge in self.edges if edge.target in keys]

    def targets(self, keys: Sequence[Key]) -> list[Edge]:
        return [edge for edge in self.edges if edge.source in keys]


def found(links: Drawn, root: str, most: int = 99) -> tuple[set[str], set[str], bool]:
    keys, edges, more = walk(links, run(root), most=most)
    return {key.id for key in keys}, {f"{edge.source.id}>{edge.target.id}" for edge in edges}, more


def test_ancestors_and_descendants_but_no_cousins() -> None:
    links = Drawn("data>train", "data>other", "train>model", "model>v1", "x>y")
    assert found(links, "train") == ({"data", "train", "model", "v1"}, {"data>train", "train>model", "model>v1"}, False)


def test_a_circle_ends() -> None:
    assert found(Drawn("a>b", "b>a"), "a") == ({"a", "b"}, {"a>b", "b>a"}, False)


def test_too_much_is_cut_off_and_said() -> None:
    things, _, more = found(Drawn(*(f"a>{number}" for number in range(50))), "a", most=10)
    assert (len(things), more) == (10, True)


def tree(links: Drawn, root: str) -> list[str]:
    keys, edges, _ = walk(links, run(root), most=99)
    things = [Thing(key=str(key), kind=key.kind, title=key.id) for key in keys]
    return render_tree(Lineage(root=root, things=things, links=[edge.as_link() for edge in edges]), Paint(False))


def test_a_tree_names_a_thing_with_several_sources_below_each() -> None:
    assert tree(Drawn("a>c", "b>c", "c>d"), "c") == [
        "run a",
        "└─ made run c  ← asked for",
        "   └─ made run d",
        "run b",
        "└─ made run c  ← asked for  (see above)",
    ]


def test_a_tree_of_a_circle_begins_with_what_was_asked_for() -> None:
    assert tree(Drawn("a>b", "b>a"), "b") == [
        "run b  ← asked for",
        "└─ made run a",
        "   └─ made run b  ← asked for  (see above)",
    ]


def test_no_thing_is_left_out_of_a_tree() -> None:
    assert tree(Drawn("x>y", "y>x", "x>c", "a>c"), "c") == [
        "run a",
        "└─ made run c  ← asked for",
        "run x",
        "├─ made run c  ← asked for",
        "└─ made run y",
        "   └─ made run x  (see above)",
    ]
