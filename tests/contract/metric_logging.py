"""Runs of the metrics store, and points of theirs, for its tests."""

from __future__ import annotations

import itertools
import math

from windlass.db.database import Database
from windlass.tracking import chunks as packing
from windlass.tracking.blocks import Logged
from windlass.tracking.compaction import Compaction, Deed
from windlass.tracking.store import log_points

_numbers = itertools.count()


def new_run() -> str:
    return f"m{next(_numbers):031d}"


def log(db: Database, run_id: str, logged: list[Logged]) -> None:
    with db.write() as tx:
        log_points(tx, run_id, logged)


def compact(db: Database, run_id: str, deed: Deed, *, most: int = 1_000) -> None:
    with db.read() as tx:
        ids = [tail.id for tail in packing.load_tails(tx, run_id)][:most]
    if ids:
        packing.compact(db, run_id, Compaction(deed=deed, tail_ids=tuple(ids)))


def mark(value: float) -> str:
    return value.hex()


def line(count: int, *, start: int = 0, name: str = "loss") -> list[Logged]:
    return [Logged(name, math.sin(step), 1_000.0 + step / 100, step) for step in range(start, start + count)]
