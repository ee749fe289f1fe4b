from __future__ import annotations

import importlib
import pkgutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text
from sqlalchemy.dialects import postgresql

import windlass
from windlass.core.errors import Conflict
from windlass.db import migrate as migrating
from windlass.db.database import Database, sqlite_url
from windlass.db.metadata import metadata
from windlass.experiments.tables import run_tags, tracked_runs
from windlass.testing.postgres import PostgresServer
from windlass.tracking.tables import summaries


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        db = Database(sqlite_url(tmp_path / "empty.db"))
        yield db
        db.close()
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.create_database()
    db = Database(url)
    yield db
    db.close()
    server.drop_database(url)


def import_all_tables() -> None:
    """Tables hang themselves on the metadata when their module is imported."""
    for package in ("runs", "nodes", "checkpoints", "tracking", "scheduling", "controller", "registry", "webhooks"):
        folder = Path(windlass.__file__).with_name(package)
        for module in pkgutil.iter_modules([str(folder)]):
            importlib.import_module(f"windlass.{package}.{module.name}")


def test_the_migrated_schema_is_the_one_the_code_uses(empty: Database) -> None:
    import_all_tables()
    migrating.migrate(empty)
    with empty.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []


def test_migrating_again_changes_nothing(empty: Database) -> None:
    assert migrating.current_revision(empty) is None
    migrating.migrate(empty)
    assert migrating.current_revision(empty) == migrating.HEAD
    with empty.write() as tx:
        tx.execute(text("INSERT INTO environments VALUES ('x', '{}')"))
    migrating.migrate(empty)
    with empty.read() as tx:
        assert tx.execute(text("SELECT count(*) FROM environments")).scalar_one() == 1


def test_the_newest_revision_is_the_one_the_code_wants() -> None:
    folder = Path(migrating.__file__).parent / "migrations" / "versions"
    assert max(path.name.split("_")[0] for path in folder.glob("[0-9]*.py")) == migrating.HEAD


def test_a_newer_schema_that_bears_this_version_is_used_as_it_is(empty: Database) -> None:
    migrating.migrate(empty)
    with empty.write() as tx:
        tx.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    migrating.migrate(empty)
    assert migrating.current_revision(empty) == "9999"


def test_a_newer_schema_is_refused_and_left_alone(empty: Database) -> None:
    migrating.migrate(empty)
    with empty.write() as tx:
        tx.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        tx.execute(text("INSERT INTO schema_readers (oldest) VALUES ('9998')"))
    with pytest.raises(Conflict, match=r"schema 9999, which servers below 9998 cannot use") as refused:
        migrating.migrate(empty)
    assert "newer Windlass" in (refused.value.hint or "")
    assert migrating.current_revision(empty) == "9999"


def test_servers_that_start_together_migrate_once(empty: Database) -> None:
    others = [Database(empty.url) for _ in range(3)]
    failed: list[BaseException] = []

    def start(db: Database) -> None:
        try:
            migrating.migrate(db)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=start, args=(db,)) for db in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for db in others:
        db.close()
    assert failed == []
    assert migrating.current_revision(empty) == migrating.HEAD


@pytest.mark.postgres
def test_ids_are_compared_byte_by_byte_whatever_the_locale(postgres_server: PostgresServer) -> None:
    """Prefixes are looked up as a range, and that is wrong in the order of a language."""
    url = postgres_server.create_database()
    db = Database(url)
    migrating.migrate(db)
    with db.read() as tx:
        found = tx.execute(
            text(
                "SELECT collname FROM pg_attribute JOIN pg_collation c ON c.oid = attcollation"
                " WHERE attrelid = 'runs'::regclass AND attname = 'id'"
            )
        ).scalar_one()
    db.close()
    postgres_server.drop_database(url)
    assert found == "C"


def test_runs_are_joined_with_their_metrics_by_index() -> None:
    """Of two collations PostgreSQL takes one, and then an index of the other is of no use."""
    assert {
        column.type.compile(postgresql.dialect())
        for column in (summaries.c.run_id, tracked_runs.c.id, run_tags.c.run_id)
    } == {'VARCHAR(32) COLLATE "C"'}
