from __future__ import annotations

from windlass.core.resources import Node
from windlass.db.database import Database
from windlass.scheduling.nodes import commit_nodes, load_kinds, load_nodes
from windlass.scheduling.place import kinds_of


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
