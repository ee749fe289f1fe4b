"""The logs of a run: which files of which attempts, and one page of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from windlass.core.errors import NotFound
from windlass.runs import store
from windlass.tracking.logs import (
    EVERYTHING,
    LogCursor,
    LogFile,
    LogFilter,
    LogRecord,
    Scan,
    find_logs,
    read_page,
    seek_tail,
    seek_time,
)
from windlass.tracking.storedlogs import StoredLogs
from windlass.wire import runs as wire
from windlass.wire.spec import RunSpec, most_ranks

_SCANNED_BYTES = 256 << 20  # for one page: a search for what is not there takes several

LogDirs = Mapping[int, Sequence[str]]  # attempt number -> places of its nodes' logs


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    rank: int | None = None
    attempt: int | None = None
    tail: int | None = None
    only: LogFilter = EVERYTHING

    def files(self, log_dirs: LogDirs, stored: StoredLogs) -> list[LogFile]:
        if self.attempt is not None:
            log_dirs = {self.attempt: log_dirs.get(self.attempt, ())}
        return find_logs(log_dirs, rank=self.rank, stored=stored)


def check_wanted(spec: RunSpec, log_dirs: LogDirs, wanted: LogQuery, stored: StoredLogs) -> None:
    """Raises NotFound for an attempt or a rank that the run has not. A rank that is to come is there."""
    if wanted.attempt is not None and wanted.attempt not in log_dirs:
        raise NotFound(f"there is no attempt {wanted.attempt}; {_counted('attempt', log_dirs, first=1)}")
    if wanted.rank is not None and wanted.rank >= most_ranks(spec):
        ranks = {*range(most_ranks(spec)), *(file.rank for file in find_logs(log_dirs, stored=stored))}
        if wanted.rank not in ranks:
            raise NotFound(f"there is no rank {wanted.rank}; {_counted('rank', ranks, first=0)}")


def _counted(what: str, numbers: Collection[int], *, first: int) -> str:
    if not numbers:
        return f"the run has no {what} yet"
    most = max(numbers)
    return f"the run has {what} {most} only" if most == first else f"the run has {what}s {first} to {most}"


def load_log_dirs(tx: Connection, run_id: str) -> LogDirs:
    return {attempt.number: attempt.log_dirs for attempt in store.load_attempts(tx, run_id)}


def first_cursor(files: Sequence[LogFile], wanted: LogQuery) -> LogCursor:
    """Where a reader begins who has seen nothing yet."""
    if wanted.tail is not None:
        return seek_tail(files, wanted.tail, wanted.only)
    if wanted.only.since is not None:
        return seek_time(files, wanted.only.since)
    return LogCursor()


def read_logs(
    log_dirs: LogDirs, stored: StoredLogs, wanted: LogQuery, after: str | None, *, limit: int
) -> wire.LogPage:
    """One page, for readers that do not follow."""
    files = wanted.files(log_dirs, stored)
    cursor = first_cursor(files, wanted) if after is None else LogCursor.decode(after)
    scan = Scan(_SCANNED_BYTES)
    found = read_page(files, cursor, limit=limit, wanted=wanted.only, scan=scan)
    lines = [wire.LogLine(**line_dict(record)) for record in found]
    return wire.LogPage(lines=lines, next_cursor=cursor.encode(), more=scan.is_over)


def line_dict(record: LogRecord) -> dict[str, Any]:
    """A `wire.LogLine` as JSON. By hand: a talkative run has a hundred thousand lines a second."""
    return {
        "at": record.at,
        "attempt": record.attempt,
        "rank": record.rank,
        "stream": record.stream,
        "text": record.text,
        "partial": record.partial,
    }
