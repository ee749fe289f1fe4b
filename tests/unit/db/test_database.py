from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from windlass.core.errors import InvalidInput, StorageFull, Unavailable
from windlass.db.database import Database, database_url, postgres_patience, sqlite_url
from windlass.db.faults import VARIABLE, CommitFault
from windlass.testing.postgres import PostgresServer


@pytest.fixture
def table(database: Database) -> Iterator[Database]:
    with database.write() as tx:
        tx.execute(text("CREATE TABLE things (id INTEGER PRIMARY KEY, name VARCHAR(50))"))
    yield database
    with database.write() as tx:
        tx.execute(text("DROP TABLE things"))


def count(db: Database) -> int:
    with db.read() as tx:
        return int(tx.execute(text("SELECT count(*) FROM things")).scalar_one())


def test_a_write_is_there_afterwards(table: Database) -> None:
    with table.write() as tx:
        tx.execute(text("INSERT INTO things VALUES (1, 'a')"))
    assert count(table) == 1


def test_a_write_that_fails_leaves_nothing(table: Database) -> None:
    with pytest.raises(ZeroDivisionError), table.write() as tx:
        tx.execute(text("INSERT INTO things VALUES (1, 'a')")).rowcount / 0
    assert count(table) == 0


def test_writers_take_turns_and_none_is_lost(table: Database) -> None:
    def add(thread: int) -> None:
        for number in range(20):
            with table.write() as tx:
                tx.execute(text(f"INSERT INTO things VALUES ({thread * 100 + number}, 'x')"))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count(table) == 160


def test_a_reader_sees_one_moment(table: Database) -> None:
    with table.read() as before:
        assert before.execute(text("SELECT count(*) FROM things")).scalar_one() == 0
        with table.write() as tx:
            tx.execute(text("INSERT INTO things VALUES (1, 'a')"))
        assert before.execute(text("SELECT count(*) FROM things")).scalar_one() == 0


def test_a_database_that_is_away_is_unavailable() -> None:
    db = Database("postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(Unavailable, match="the database does not answer"), db.read():
        pass
    db.close()


def test_a_full_disk_is_told_as_such(sqlite: Database) -> None:
    with sqlite.write() as tx:
        tx.execute(text("CREATE TABLE things (data TEXT)"))
        pages = tx.execute(text("PRAGMA page_count")).scalar_one()
        tx.execute(text(f"PRAGMA max_page_count={pages + 2}"))  # of this connection, which the pool gives out again
    with pytest.raises(StorageFull, match="no room left") as full, sqlite.write() as tx:
        tx.execute(text("INSERT INTO things VALUES (:data)"), {"data": "x" * 100_000})
    assert full.value.hint


def test_a_password_is_not_shown(sqlite: Database) -> None:
    db = Database("postgresql://me:hunter2@db.example/prod")
    assert "hunter2" not in db.describe()
    assert "db.example/prod" in db.describe()
    db.close()


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("postgres://u@h/n", "postgresql+psycopg"),
        ("postgresql://u@h/n", "postgresql+psycopg"),
        ("postgresql+psycopg://u@h/n", "postgresql+psycopg"),
        ("sqlite:////tmp/x.db", "sqlite"),
    ],
)
def test_urls_as_people_write_them(url: str, driver: str) -> None:
    db = Database(url)
    assert db.engine.url.drivername == driver
    db.close()


def test_a_database_host_that_says_nothing_is_not_waited_for_long() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        db = Database(f"postgresql://u:p@127.0.0.1:{silent.getsockname()[1]}/n?connect_timeout=2")
        with pytest.raises(Unavailable), db.read():
            pass
        db.close()


def test_how_long_a_silent_database_is_waited_for_can_be_said_in_its_url() -> None:
    assert postgres_patience("postgresql+psycopg://h/n?connect_timeout=2").keys().isdisjoint({"connect_timeout"})
    assert postgres_patience("postgresql+psycopg://h/n")["connect_timeout"] == 5


@pytest.mark.parametrize("url", ["mysql://u@h/n", "sqlite:x.db", "nonsense", "redis://h"])
def test_an_unknown_database_is_refused_with_the_known_ones(url: str) -> None:
    with pytest.raises(InvalidInput, match="known: sqlite:///PATH, postgresql://"):
        Database(url)


def test_the_database_is_in_the_home_unless_told_otherwise(tmp_path: Path) -> None:
    assert database_url({}, tmp_path) == sqlite_url(tmp_path / "windlass.db")
    assert database_url({"WINDLASS_DATABASE_URL": "postgresql://x/y"}, tmp_path) == "postgresql://x/y"


def test_a_fault_is_only_there_when_asked_for() -> None:
    assert CommitFault.from_environ({}) is None
    with pytest.raises(ValueError, match="unknown moment 'sometime'; known: before, after"):
        CommitFault.from_environ({VARIABLE: "3:sometime"})


@pytest.mark.parametrize(("fault", "kept"), [("2:before", 1), ("2:after", 2)])
def test_a_fault_kills_right_at_its_commit(tmp_path: Path, fault: str, kept: int) -> None:
    url = sqlite_url(tmp_path / "x.db")
    program = f"""
        import os
        from sqlalchemy import text
        from windlass.db.database import Database
        from windlass.db.faults import CommitFault
        db = Database({url!r})
        with db.write() as tx:
            tx.execute(text("CREATE TABLE things (id INTEGER)"))
        db = Database({url!r}, fault=CommitFault.from_environ(os.environ))
        for number in range(3):
            with db.write() as tx:
                tx.execute(text("INSERT INTO things VALUES (1)"))
    """
    environ = {**os.environ, VARIABLE: fault}
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=environ, check=False)
    assert ended.returncode == -signal.SIGKILL
    db = Database(url)
    assert count(db) == kept
    db.close()


@pytest.mark.postgres
@pytest.mark.parametrize("trusted_s", [-1.0, 3600.0], ids=["after_a_while", "at_once"])
def test_connections_that_died_in_the_pool(
    postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch, trusted_s: float
) -> None:
    """Whoever asks after a while notices nothing; of those that ask at once the first one is told to try again."""
    monkeypatch.setattr("windlass.db.database._TRUSTED_S", trusted_s)
    db = Database(postgres_url)
    try:
        with db.read() as one, db.read() as other:
            assert one.execute(text("SELECT 1")).scalar() == other.execute(text("SELECT 1")).scalar() == 1
        postgres_server.empty_database(postgres_url)
        if trusted_s > 0:
            with pytest.raises(Unavailable), db.read() as tx:
                tx.execute(text("SELECT 1"))
        for _ in range(3):
            with db.write() as tx:
                assert tx.execute(text("SELECT 1")).scalar() == 1
    finally:
        db.close()
