"""Groups of runs, on both databases."""

from __future__ import annotations

from sqlalchemy import text

from windlass.db.database import Database
from windlass.runs.annotations import groups_query


def test_groups_are_found_without_a_look_at_all_tags(database: Database) -> None:
    """The index holds only tags that are groups, and is used."""
    query = groups_query(None).compile(database.engine)
    with database.read() as tx:
        if database.is_sqlite:
            values = tuple(query.params[name] for name in query.positiontup or ())
            plan = tx.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}", values).all()
        else:
            tx.execute(text("SET LOCAL enable_seqscan = off"))  # with no rows at all, reading all is as cheap
            plan = tx.exec_driver_sql(f"EXPLAIN {query}", query.params).all()
        assert tx.execute(groups_query("vision")).all() == []
    assert any("ix_run_tags_group" in str(row) for row in plan), plan
