"""Is the database there, quick, of the right schema, and of one mind with us about the time?"""

from __future__ import annotations

import time
from collections.abc import Iterator

from sqlalchemy import text

from windlass.core.clock import Clock
from windlass.db.database import Database
from windlass.db.migrate import HEAD, current_revision
from windlass.server.checks.clocks import compare
from windlass.wire.checks import CheckView

_SLOW_MS = 50.0
_TRIES = 5
_OLDEST_POSTGRES = 130_000


def check(db: Database, clock: Clock) -> Iterator[CheckView]:
    yield _reach(db)
    if not db.is_sqlite:
        yield _version(db)
    yield _schema(db)
    if not db.is_sqlite:  # which has this machine's clock
        yield _clock(db, clock)


def _reach(db: Database) -> CheckView:
    """The quickest of a few: one alone may have had to connect first."""
    times = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        with db.read() as tx:
            tx.execute(text("SELECT 1"))
        times.append(1000 * (time.perf_counter() - began))
    fine = min(times) < _SLOW_MS
    advice = "" if fine else "every request asks it several times: have it nearer to the server"
    return CheckView(
        code="database.reach",
        name="database",
        status="ok" if fine else "warn",
        found=f"{db.describe()}, answers in {min(times):.1f} ms",
        advice=advice,
    )


def _version(db: Database) -> CheckView:
    with db.read() as tx:
        number = int(tx.execute(text("SHOW server_version_num")).scalar_one())
        name = str(tx.execute(text("SHOW server_version")).scalar_one())
    fine = number >= _OLDEST_POSTGRES
    return CheckView(
        code="database.version",
        name="PostgreSQL",
        status="ok" if fine else "fail",
        found=name,
        advice="" if fine else "Windlass is tested with 13 and newer",
    )


def _schema(db: Database) -> CheckView:
    found = current_revision(db)
    if found == HEAD:
        return CheckView(code="database.schema", name="schema", status="ok", found=HEAD)
    advice = "a newer server uses it too: upgrade this one" if found and found > HEAD else "start a server once"
    return CheckView(
        code="database.schema", name="schema", status="warn", found=f"{found}; this server has {HEAD}", advice=advice
    )


def _clock(db: Database, clock: Clock) -> CheckView:
    with db.read() as tx:
        before = clock.now()
        there = float(tx.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
        after = clock.now()
    return compare("database.clock", "database clock", there=there, before=before, after=after, exact_s=0.001)
