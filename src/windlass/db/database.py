"""Connections and transactions, for SQLite (embedded) and PostgreSQL (shared) alike. No queries of anyone's.

`read()` gives a consistent view; `write()` commits when its block ends without an error, and what it committed is on
disk. Writers in one process take turns here rather than in SQLite's busy loop.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import DataError, DBAPIError, InvalidatePoolError, OperationalError
from sqlalchemy.pool import QueuePool

from windlass.core.errors import InvalidInput, StorageFull, Unavailable
from windlass.db.faults import CommitFault

if TYPE_CHECKING:
    from windlass.db.notices import Listener

_BUSY_TIMEOUT_MS = 20_000
# A database host that has vanished sends nothing, not even a refusal. By the system's own defaults, whoever waits for
# it would wait for a quarter of an hour, and an idle listener for two hours. The URL may say otherwise.
_POSTGRES_PATIENCE = {
    "connect_timeout": 5,  # seconds, like the next ones
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # milliseconds
}
# What is asked for takes milliseconds; PostgreSQL's own guesses have it compile statements and start processes, which
# takes longer than the answer. It still starts some where a statement reads millions of rows.
_POSTGRES_PLANNING = ("SET jit = off", "SET parallel_setup_cost = 50000")
# A connection that has just been used is not asked whether it lives: of a small write that would be one question in
# seven.
_TRUSTED_S = 0.25
_FULL = ("disk is full", "No space left", "could not extend file")


class Database:
    def __init__(self, url: str, *, pool_size: int = 16, fault: CommitFault | None = None) -> None:
        self.url = _with_driver(url)
        self.is_sqlite = self.url.startswith("sqlite")
        self._fault = fault
        # One writer at a time is SQLite's own rule; PostgreSQL has row locks for that.
        self._writing: contextlib.AbstractContextManager[Any] = (
            threading.Lock() if self.is_sqlite else contextlib.nullcontext()
        )
        self.engine = _sqlite_engine(self.url, pool_size) if self.is_sqlite else _postgres_engine(self.url, pool_size)
        # PostgreSQL's default looks anew for each statement: what moves from one table to another between two of them
        # would be in neither. SQLite's readers see one moment anyhow.
        self._reading = (
            self.engine
            if self.is_sqlite
            else self.engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        )

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        with _translated(), self._reading.connect() as connection, connection.begin():
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        with _translated(), self._writing, self.engine.connect() as connection:
            if self.is_sqlite:
                connection.execution_options(windlass_write=True)
            with connection.begin() as transaction:
                yield connection
                if self._fault:
                    self._fault.before()
                transaction.commit()
            if self._fault:
                self._fault.after()

    def notify(self, channel: str) -> None:
        """Wake whoever listens in other processes. Nobody can on SQLite, where there are none."""
        if not self.is_sqlite:
            with _translated(), self.engine.connect() as connection:
                connection.execution_options(isolation_level="AUTOCOMMIT").execute(text(f"NOTIFY {channel}"))

    def listen(self, channel: str, heard: Callable[[], None]) -> Listener | None:
        """Call `heard`, from a thread, whenever somebody notifies; None where that cannot be had."""
        if self.is_sqlite:
            return None
        from windlass.db.notices import Listener

        return Listener(self.url, channel, heard)

    def describe(self) -> str:
        return self.engine.url.render_as_string(hide_password=True)

    def close(self) -> None:
        self.engine.dispose()


def sqlite_url(path: Path) -> str:
    return f"sqlite:///{path}"


def _with_driver(url: str) -> str:
    for prefix in ("postgresql://", "postgres://"):
        if url.startswith(prefix):
            return "postgresql+psycopg://" + url[len(prefix) :]
    if not url.startswith(("sqlite:///", "postgresql+psycopg://")):
        scheme = url.partition(":")[0]
        raise InvalidInput(f"unknown database '{scheme}'; known: sqlite:///PATH, postgresql://USER:PASSWORD@HOST/NAME")
    return url


def _sqlite_engine(url: str, pool_size: int) -> Engine:
    engine = create_engine(
        url,
        poolclass=QueuePool,
        pool_size=pool_size,
        max_overflow=64,
        pool_use_lifo=True,  # who was used last has most of what is asked for in its cache
        # Transactions are begun below, by hand: the driver's own begin is neither deferred nor immediate.
        connect_args={"check_same_thread": False, "isolation_level": None, "timeout": _BUSY_TIMEOUT_MS / 1000},
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        _use_wal(cursor)
        for pragma in (
            "synchronous=FULL",
            "foreign_keys=ON",
            f"busy_timeout={_BUSY_TIMEOUT_MS}",
            "cache_size=-4000",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        writing = connection.get_execution_options().get("windlass_write")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN DEFERRED")

    return engine


def _use_wal(cursor: Any) -> None:
    """Connections that do this at the same moment refuse each other at once, whatever their patience is."""
    deadline = time.monotonic() + _BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _postgres_engine(url: str, pool_size: int) -> Engine:
    patience = postgres_patience(url)
    # Who was used last knows the tables and has the statements prepared.
    engine = create_engine(url, pool_size=pool_size, max_overflow=32, pool_use_lifo=True, connect_args=patience)

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        connection.autocommit = True
        for setting in _POSTGRES_PLANNING:
            connection.execute(setting)
        connection.autocommit = False

    @event.listens_for(engine, "checkin")
    def _put_back(_connection: Any, record: Any) -> None:
        record.info["used_at"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def _take(connection: Any, record: Any, _proxy: Any) -> None:
        used_at = record.info.get("used_at")
        if used_at is not None and time.monotonic() - used_at > _TRUSTED_S:
            try:
                engine.dialect.do_ping(connection)
            except engine.dialect.loaded_dbapi.Error as error:
                raise InvalidatePoolError from error  # the pool then opens others

    return engine


def postgres_patience(url: str) -> dict[str, Any]:
    """What to tell the driver of it besides the URL."""
    given = make_url(url).query
    return {name: value for name, value in _POSTGRES_PATIENCE.items() if name not in given}


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Database trouble that is nobody's fault becomes an error of ours, and so do values that it cannot keep or
    compare; everything else passes as it is."""
    try:
        yield
    except (OperationalError, DBAPIError) as error:
        text = str(error.orig)
        if any(sign in text for sign in _FULL):
            raise StorageFull(f"the database has no room left: {text}", hint="free some disk space") from error
        if isinstance(error, OperationalError):
            raise Unavailable(f"the database does not answer: {text}", hint="trying again may help") from error
        if isinstance(error, DataError):
            raise InvalidInput(f"the database refuses a value: {text.partition(chr(10))[0]}") from error
        raise


def database_url(environ: os._Environ[str] | dict[str, str], home: Path) -> str:
    return environ.get("WINDLASS_DATABASE_URL") or sqlite_url(home / "windlass.db")
