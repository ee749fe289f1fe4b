"""Leases on shards of runs: rows in the database that their holders keep beating. Each shard has one controller.

A lease passes on when its beat has stood still for `ttl_s` by the watcher's own monotonic clock (clocks of different
machines are never compared), or at once when the holder was a process of this machine (and this container) that is
gone. Every write of a controller first beats inside the same transaction: one that has been replaced meanwhile cannot
write any more.

How many shards there are is a fact of the database, since controllers that divided the runs differently would look
after the same ones. The first controller sets it; it is changed when nobody holds a shard.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Column, Connection, Integer, Row, String, Table, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from windlass.agent import kernel
from windlass.controller.shards import decide_shards, slots_of
from windlass.core.errors import Conflict
from windlass.core.ids import new_holder_nonce
from windlass.db.database import Database
from windlass.db.metadata import metadata

log = logging.getLogger(__name__)

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
_BEAT_PART = 0.4  # of that time
_SHARD = "controller"
_MEMBER = "member/"
_NUMBER = "shards"  # a row that is no lease: its beat is the number of shards


Rows = Mapping[str, Row[Any]]  # by name


class LeaseLost(Conflict):
    """Another controller has the shard now; this one must stop acting on it."""

    code = "lease_lost"


@dataclass(slots=True)
class _Seen:
    holder: str
    beat: int
    since: float


class Pulses:
    """Which holders of leases live, as far as one that only looks on can tell."""

    def __init__(self, *, monotonic: Callable[[], float], ttl_s: float) -> None:
        self._monotonic = monotonic
        self._ttl_s = ttl_s
        self._machine = _machine()
        self._seen: dict[str, _Seen] = {}

    def is_dead(self, row: Row[Any]) -> bool:
        if row.pid == 0:
            return True
        if row.host == self._machine and not kernel.is_alive(row.pid, row.pid_start):
            return True
        now = self._monotonic()
        seen = self._seen.get(row.name)
        if seen is None or (seen.holder, seen.beat) != (row.holder, row.beat):
            self._seen[row.name] = _Seen(row.holder, row.beat, now)
            return False
        return now - seen.since >= self._ttl_s


class ControllerWatch:
    """What the API says about controllers: those that hold leases, not those that held them when they died."""

    def __init__(self, holder: str | None, *, monotonic: Callable[[], float], ttl_s: float = TTL_S) -> None:
        self._holder = holder  # of the controller in this process, if there is one
        self._pulses = Pulses(monotonic=monotonic, ttl_s=ttl_s)

    def state(self, tx: Connection) -> str:
        """`active` if runs are moved forward, by the controller of this process if there is one; `standby` if only
        others do; `absent` if nobody does."""
        rows = tx.execute(select(leases).where(leases.c.name.startswith(_SHARD)))
        living = {row.holder for row in rows if not self._pulses.is_dead(row)}
        if not living:
            return "absent"
        return "active" if self._holder is None or self._holder in living else "standby"


class ShardLeases:
    """What one controller holds. Not thread-safe: one controller loop owns it."""

    def __init__(self, count: int = 1, *, monotonic: Callable[[], float], ttl_s: float = TTL_S) -> None:
        """`count` is the number of shards wanted here; the database may have another, which is used then."""
        self._wanted = count
        self._count = count
        self._monotonic = monotonic
        self._ttl_s = ttl_s
        self._host = _machine()
        nonce = new_holder_nonce()
        self.holder = f"{socket.gethostname()}:{os.getpid()}:{nonce}"
        self._member = _MEMBER + nonce
        self.held: frozenset[int] = frozenset()
        self._pulses = Pulses(monotonic=monotonic, ttl_s=ttl_s)
        self._beat_at = float("-inf")  # as a member
        self._proved_at: float | None = None  # as the holder of its shards

    @property
    def schedules(self) -> bool:
        """Placing is for all shards together, so one controller does it: the one with the first shard."""
        return 0 in self.held

    @property
    def slots(self) -> frozenset[int] | None:
        """The slots of the runs to look after; None: all of them."""
        return None if len(self.held) == self._count else slots_of(self.held, self._count)

    def acquire(self, db: Database, *, may_release: Callable[[], bool] = lambda: True) -> bool:
        """Take and give back shards until each controller has its part; whether this one has any. `may_release` is
        asked before shards are given back: they stay for now if something is still being done about their runs."""
        rows = self._agree(db, _load(db))
        names = [shard_name(shard) for shard in range(self._count)]
        free = {shard for shard, name in enumerate(names) if name not in rows or self._is_dead(rows[name])}
        mine = {shard for shard in range(self._count) if shard not in free and self._holds(rows[names[shard]])}
        members = self._live_members(db, rows) if self._count > 1 else [self._member]
        change = decide_shards(self._count, mine=mine, free=free, me=self._member, members=members)
        release = change.release if change.release and may_release() else frozenset()
        self._release(db, release)
        taken = {shard for shard in change.take if self._take(db, names[shard], rows.get(names[shard]))}
        self.held = frozenset((mine - release) | taken)
        self._stay_a_member(db)
        return bool(self.held)

    def beat(self, tx: Connection) -> None:
        """Prove, inside a write, that every shard is still held, and renew them."""
        names = [shard_name(shard) for shard in self.held]
        mine = [*names, self._member] if self._count > 1 else names
        done = tx.execute(
            update(leases).where(leases.c.name.in_(mine), leases.c.holder == self.holder).values(beat=leases.c.beat + 1)
        )
        if not names or done.rowcount != len(mine):
            lost = ", ".join(sorted(names)) or _SHARD
            raise LeaseLost(f"the lease '{lost}' is held by another controller now")
        self._beat_at = self._proved_at = self._monotonic()

    def wants_beat(self) -> bool:
        """Whether others will soon take this one for dead, if it does not write."""
        return self._proved_at is None or self._monotonic() - self._proved_at >= _BEAT_PART * self._ttl_s

    def is_fresh(self) -> bool:
        """Whether nobody can have taken this one for dead since it wrote last. Safe from any thread."""
        return self._proved_at is not None and self._monotonic() - self._proved_at < self._ttl_s

    def give_up(self, db: Database) -> None:
        """Let others take over at once."""
        self._release(db, self.held)
        with db.write() as tx:
            tx.execute(delete(leases).where(leases.c.name == self._member))

    def _agree(self, db: Database, rows: Rows) -> Rows:
        """Go by the database's number of shards; the rows as they are then."""
        known = rows.get(_NUMBER)
        if known is None:
            self._create(db, _NUMBER, beat=self._wanted)
            rows = _load(db)
        elif known.beat != self._wanted and not any(self._is_held(row) for row in rows.values()):
            self._renumber(db, known.beat, rows)
            rows = _load(db)
        count = int(rows[_NUMBER].beat)
        if count not in (self._count, self._wanted):
            log.warning(
                "`controller.shards` is %d here, and this database's controllers share %d, so it is %d; "
                "to change it, stop all of them and start them with the new number",
                self._wanted,
                count,
                count,
            )
        self._count = count
        return rows

    def _renumber(self, db: Database, known: int, rows: Rows) -> None:
        """Unless somebody has taken a shard meanwhile. The leases of the dead go: should one of them only have been
        slow, it finds that it has lost them."""
        with db.write() as tx:
            if not _lock_number(tx, known):
                return
            shards = tx.execute(select(leases).where(leases.c.name.startswith(_SHARD))).all()
            if all(row == rows.get(row.name) for row in shards):
                tx.execute(update(leases).where(leases.c.name == _NUMBER).values(beat=self._wanted))
                tx.execute(delete(leases).where(leases.c.name.startswith(_SHARD)))
                self._count = self._wanted

    def _is_held(self, row: Row[Any]) -> bool:
        return row.name.startswith(_SHARD) and not self._is_dead(row)

    def _release(self, db: Database, shards: Collection[int]) -> None:
        """Mark the holder as gone."""
        if shards:
            names = [shard_name(shard) for shard in shards]
            with db.write() as tx:
                tx.execute(update(leases).where(leases.c.name.in_(names), leases.c.holder == self.holder).values(pid=0))
            self.held -= frozenset(shards)

    def _take(self, db: Database, name: str, row: Row[Any] | None) -> bool:
        if row is None:
            return self._create(db, name)
        with db.write() as tx:
            if not _lock_number(tx, self._count):
                return False
            done = tx.execute(
                update(leases)
                .where(leases.c.name == name, leases.c.holder == row.holder, leases.c.beat == row.beat)
                .values(beat=row.beat + 1, **self._identity())
            )
        return done.rowcount == 1

    def _create(self, db: Database, name: str, *, beat: int = 1) -> bool:
        try:
            with db.write() as tx:
                if name != _NUMBER and not _lock_number(tx, self._count):
                    return False
                tx.execute(insert(leases).values(name=name, beat=beat, **self._identity()))
        except IntegrityError:
            return False
        return True

    def _live_members(self, db: Database, rows: Rows) -> list[str]:
        others = [row for name, row in rows.items() if name.startswith(_MEMBER) and name != self._member]
        dead = [row.name for row in others if self._is_dead(row)]
        if dead:
            with db.write() as tx:
                tx.execute(delete(leases).where(leases.c.name.in_(dead)))
        return sorted([self._member, *(row.name for row in others if row.name not in dead)])

    def _stay_a_member(self, db: Database) -> None:
        """One that holds nothing writes nothing, and would be taken for dead."""
        now = self._monotonic()
        if self._count == 1 or now - self._beat_at < self._ttl_s / 4:
            return
        with db.write() as tx:
            done = tx.execute(
                update(leases).where(leases.c.name == self._member).values(beat=leases.c.beat + 1, pid=os.getpid())
            )
            if not done.rowcount:
                tx.execute(insert(leases).values(name=self._member, beat=1, **self._identity()))
        self._beat_at = now

    def _identity(self) -> dict[str, object]:
        return {
            "holder": self.holder,
            "host": self._host,
            "pid": os.getpid(),
            "pid_start": _own_start(),
        }

    def _holds(self, row: Row[Any]) -> bool:
        return bool(row.holder == self.holder)

    def _is_dead(self, row: Row[Any]) -> bool:
        if row.pid != 0 and self._holds(row):
            return False
        return self._pulses.is_dead(row)


def _load(db: Database) -> Rows:
    with db.read() as tx:
        return {row.name: row for row in tx.execute(select(leases))}


def _lock_number(tx: Connection, count: int) -> bool:
    """Whether it is this; then it stays so until the transaction ends."""
    done = tx.execute(update(leases).where(leases.c.name == _NUMBER, leases.c.beat == count).values(beat=leases.c.beat))
    return done.rowcount == 1


def shard_name(shard: int) -> str:
    return f"{_SHARD}/{shard}" if shard else _SHARD


def _machine() -> str:
    """Whose process ids mean the same: containers may share a host name and yet count their processes each from 1."""
    return f"{socket.gethostname()}/{kernel.boot_id()}/{os.readlink('/proc/self/ns/pid')}"[-200:]


def _own_start() -> int:
    me = kernel.stat(os.getpid())
    return me.start if me else 0
