"""What can be asked of lineage; one transaction each."""

from __future__ import annotations

from windlass.db.database import Database
from windlass.lineage.links import DatabaseLinks, load_things
from windlass.lineage.references import find_key
from windlass.lineage.walk import walk
from windlass.wire.lineage import Lineage

MOST_THINGS = 500


class LineageService:
    def __init__(self, *, db: Database) -> None:
        self._db = db

    def of(self, ref: str) -> Lineage:
        """Of a run (id or name), `models:/NAME/VERSION`, `models:/NAME@ALIAS`, a logged model `m-…`,
        `dataset:NAME[@DIGEST]` or `checkpoint:ID`. Raises as `find_key`."""
        with self._db.read() as tx:
            root = find_key(tx, ref)
            keys, edges, truncated = walk(DatabaseLinks(tx), root, most=MOST_THINGS)
            things = load_things(tx, keys)
        return Lineage(root=str(root), things=things, links=[edge.as_link() for edge in edges], truncated=truncated)
