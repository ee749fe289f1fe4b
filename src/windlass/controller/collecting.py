"""Moving metric points, alerts and notes of checkpoints from the spools that ranks write to the store, each exactly
once: the files are read first, then all of it and the positions are committed together.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection

from windlass.agent import layout
from windlass.checkpoints.store import record_notes
from windlass.runs.alerts import record_alerts
from windlass.runs.rulebook import heed_points
from windlass.runs.tracked import record_plan
from windlass.tracking.points import SpoolChunk, parse_spool
from windlass.tracking.store import ingest

log = logging.getLogger(__name__)

_MOST_BYTES = 4 << 20  # of one spool in one pass: a flood of points must not stall the loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Spooled:
    run_id: str
    source: str
    position: int
    chunk: SpoolChunk


def read_spools(
    run_id: str,
    attempt_id: str,
    folders: Sequence[str],
    positions: Mapping[tuple[str, str], int],
    *,
    drain: bool = False,
) -> Iterator[Spooled]:
    """What is new in an attempt's spools. With `drain` all of it: the attempt has ended."""
    for rank, path in _spools(folders):
        source = f"spool:{attempt_id}:{rank}"
        position = positions.get((run_id, source), 0)
        while (chunk := _read(path, position)) is not None:
            yield Spooled(run_id=run_id, source=source, position=position, chunk=chunk)
            position = chunk.next_position
            if not drain:
                break


def commit_spooled(tx: Connection, spooled: Sequence[Spooled], *, now: float, ending: bool = False) -> None:
    """`ending`: what follows in this transaction is the end of their attempt."""
    for part in sorted(spooled, key=lambda part: part.run_id):  # as all writers of points lock them
        ingest(
            tx,
            part.run_id,
            part.source,
            part.chunk.points,
            position=part.position,
            next_position=part.chunk.next_position,
        )
        heed_points(tx, part.run_id, part.chunk.points, now=now, may_stop=not ending)
        record_alerts(tx, part.run_id, part.source, part.chunk.alerts)
        record_notes(tx, part.run_id, part.source, part.chunk.saves)
        record_plan(tx, part.run_id, part.chunk.plan)


def _spools(folders: Sequence[str]) -> Iterator[tuple[int, Path]]:
    for folder in folders:
        try:
            names = os.listdir(folder)
        except OSError as error:
            _complain(folder, error)
            continue
        for name in names:
            rank = layout.rank_of_spool(name)
            if rank is not None and (path := Path(folder, name)).is_file():
                yield rank, path


def _read(path: Path, position: int) -> SpoolChunk | None:
    """The next complete lines; None if there is none."""
    try:
        if path.stat().st_size <= position:
            return None
        with path.open("rb") as file:
            file.seek(position)
            data = file.read(_MOST_BYTES)
    except OSError as error:
        _complain(path, error)
        return None
    chunk = parse_spool(data, position)
    if chunk.next_position == position and len(data) == _MOST_BYTES:
        # A line this long is no point; waiting for its end would keep all that follow it waiting too.
        chunk = SpoolChunk(next_position=position + len(data), bad_lines=1)
    return chunk if chunk.next_position > position else None


def _complain(path: str | Path, error: OSError) -> None:
    """Programs may do anything in their folders, and shared ones have moods: one that cannot be read costs its own
    run's points, and no other run anything."""
    if not isinstance(error, FileNotFoundError):
        log.warning("the points in %s cannot be read: %s", path, error)
