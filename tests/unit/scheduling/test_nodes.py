from __future__ import annotations

from dataclasses import replace

from sqlalchemy import text

from windlass.core.resources import Node
from windlass.db.database import Database
from windlass.scheduling.fit import kinds_of
from windlass.scheduling.nodes import commit_nodes, load_kinds, load_nodes


def test_the_database_counts_kinds_as_we_do(database: Database) -> None:
    small = [Node(engine="x", name=f"s{number}", cpus=4, memory_bytes=10**9) for number in range(3)]
    large = [
        Node(engine="x", name=f"a{number}", cpus=8, memory_bytes=10**9, gpus=2, gpu_type="l4") for number in (1, 2)
    ]
    other = [Node(engine="y", name="s0", cpus=4, memory_bytes=10**9)]
    with database.write() as tx:
        commit_nodes(tx, "x", [*small, *large], now=1.0)
        commit_nodes(tx, "y", other, now=1.0)
    with database.read() as tx:
        kinds, nodes = load_kinds(tx), load_nodes(tx)
    assert kinds == kinds_of(nodes)
    assert [(kind.node.name, kind.count) for kind in kinds] == [("a1", 2), ("s0", 3), ("s0", 1)]


def test_what_nodes_are_besides_their_size_is_kept(database: Database) -> None:
    plain = Node(engine="x", name="a", cpus=4, memory_bytes=10**9)
    rack = replace(plain, name="b", topology=("eu-1a", "r1"), price_per_hour=3.5)
    spot = replace(plain, name="c", spot=True)
    labelled = [replace(plain, name=name, labels=frozenset({"zone=a", "gen=3"})) for name in ("d", "e")]
    with database.write() as tx:
        commit_nodes(tx, "x", [plain, rack, spot, *labelled], now=1.0)
    with database.read() as tx:
        kinds, nodes = load_kinds(tx), load_nodes(tx)
    assert nodes == (plain, rack, spot, *labelled)
    # Where it stands and what it costs says nothing about what could run there.
    assert [(kind.node.name, kind.count) for kind in kinds] == [("a", 2), ("c", 1), ("d", 2)]
    assert [kind.count for kind in kinds_of(nodes)] == [2, 1, 2]


def test_nodes_that_an_older_server_wrote_have_no_attributes(database: Database) -> None:
    with database.write() as tx:
        tx.execute(
            text("INSERT INTO nodes (engine, name, cpus, memory_bytes, gpus, seen_at) VALUES ('x', 'a', 4, 1, 0, 1.0)")
        )
    with database.read() as tx:
        assert load_nodes(tx) == (Node(engine="x", name="a", cpus=4, memory_bytes=1),)
