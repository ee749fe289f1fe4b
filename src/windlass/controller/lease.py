"""Exactly one active controller: a row in the database that its holder keeps beating.

A standby takes over when the beat has stood still for `ttl_s` by its own monotonic clock (clocks of different machines
are never compared), or at once when the holder was a process of this machine that is gone. Every write of the active
controller first beats inside the same transaction: one that has been replaced meanwhile cannot write any more.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Column, Connection, Integer, Row, String, Table, insert, select, update
from sqlalchemy.exc import IntegrityError

from windlass.agent import kernel
from windlass.core.errors import Conflict
from windlass.core.ids import new_holder_nonce
from windlass.db.database import Database
from windlass.db.metadata import metadata

leases = Table(
    "leases",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("holder", String(100), nullable=False),
    Column("host", String(200), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("pid_start", BigInteger, nullable=False),
    Column("beat", BigInteger, nullable=False),
)

TTL_S = 5.0


class LeaseLost(Conflict):
    """Another controller is active now; this one must stop acting."""

    code = "lease_lost"


@dataclass(slots=True)
class _Seen:
    holder: str
    beat: int
    since: float


class Lease:
    """Not thread-safe: one controller loop owns it."""

    def __init__(self, name: str, *, monotonic: Callable[[], float], ttl_s: float = TTL_S) -> None:
        self._name = name
        self._monotonic = monotonic
        self._ttl_s = ttl_s
        self._host = socket.gethostname()
        self.holder = f"{self._host}:{os.getpid()}:{new_holder_nonce()}"
        self._seen: _Seen | None = None

    def acquire(self, db: Database) -> bool:
        """Take the lease if it is free or its holder is dead. Holding it already is fine."""
        with db.read() as tx:
            row = tx.execute(select(leases).where(leases.c.name == self._name)).first()
        if row is None:
            return self._create(db)
        if row.holder == self.holder:
            return True
        if not self._is_dead(row):
            return False
        with db.write() as tx:
            done = tx.execute(
                update(leases)
                .where(leases.c.name == self._name, leases.c.holder == row.holder, leases.c.beat == row.beat)
                .values(beat=row.beat + 1, **self._identity())
            )
        return done.rowcount == 1

    def beat(self, tx: Connection) -> None:
        """Prove, inside a write, that the lease is still held, and renew it."""
        done = tx.execute(
            update(leases)
            .where(leases.c.name == self._name, leases.c.holder == self.holder)
            .values(beat=leases.c.beat + 1)
        )
        if done.rowcount != 1:
            raise LeaseLost(f"the lease '{self._name}' is held by another controller now")

    def give_up(self, db: Database) -> None:
        """Let a standby take over at once: mark the holder as gone."""
        with db.write() as tx:
            tx.execute(update(leases).where(leases.c.name == self._name, leases.c.holder == self.holder).values(pid=0))

    def _create(self, db: Database) -> bool:
        try:
            with db.write() as tx:
                tx.execute(insert(leases).values(name=self._name, beat=1, **self._identity()))
        except IntegrityError:
            return False
        return True

    def _identity(self) -> dict[str, object]:
        return {
            "holder": self.holder,
            "host": self._host,
            "pid": os.getpid(),
            "pid_start": _own_start(),
        }

    def _is_dead(self, row: Row[Any]) -> bool:
        if row.pid == 0:
            return True
        if row.host == self._host and not kernel.is_alive(row.pid, row.pid_start):
            return True
        now = self._monotonic()
        if self._seen is None or (self._seen.holder, self._seen.beat) != (row.holder, row.beat):
            self._seen = _Seen(row.holder, row.beat, now)
            return False
        return now - self._seen.since >= self._ttl_s


def _own_start() -> int:
    me = kernel.stat(os.getpid())
    return me.start if me else 0


def controller_state(tx: Connection, name: str, holder: str | None) -> str:
    """`active` if the holder of this process has the lease, `standby` if another one has, `absent` if nobody has."""
    row = tx.execute(select(leases.c.holder, leases.c.pid).where(leases.c.name == name)).first()
    if row is None or row.pid == 0:
        return "absent"
    return "active" if holder is None or row.holder == holder else "standby"
