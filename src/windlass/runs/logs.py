"""The logs of a run: which files of which attempts, and one page of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from windlass.runs import store
from windlass.tracking.logs import LogCursor, LogFile, LogRecord, find_logs, read_page, seek_tail
from windlass.tracking.storedlogs import StoredLogs
from windlass.wire import runs as wire

LogDirs = Mapping[int, Sequence[str]]  # attempt number -> places of its nodes' logs


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    rank: int | None = None
    attempt: int | None = None
    stream: str | None = None
    tail: int | None = None

    def files(self, log_dirs: LogDirs, stored: StoredLogs) -> list[LogFile]:
        if self.attempt is not None:
            log_dirs = {self.attempt: log_dirs.get(self.attempt, ())}
        return find_logs(log_dirs, rank=self.rank, stored=stored)


def load_log_dirs(tx: Connection, run_id: str) -> LogDirs:
    return {attempt.number: attempt.log_dirs for attempt in store.load_attempts(tx, run_id)}


def read_logs(
    log_dirs: LogDirs, stored: StoredLogs, wanted: LogQuery, after: str | None, *, limit: int
) -> wire.LogPage:
    """One page, for readers that do not follow."""
    files = wanted.files(log_dirs, stored)
    cursor = LogCursor.decode(after)
    if after is None and wanted.tail is not None:
        cursor = seek_tail(files, wanted.tail)
    lines = [
        wire.LogLine(**line_dict(record)) for record in read_page(files, cursor, limit=limit, stream=wanted.stream)
    ]
    return wire.LogPage(lines=lines, next_cursor=cursor.encode())


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
