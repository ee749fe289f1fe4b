"""Reading rank logs, from the folders that attempts leave behind or from the store: pages, tails and following, merged
over ranks by time.

A cursor holds the byte position in every file, so a reader that comes back continues without loss or repeats.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from heapq import merge
from pathlib import Path
from typing import Protocol

from windlass.agent import layout
from windlass.core.errors import InvalidInput
from windlass.tracking.storedlogs import SCHEME, LogPlace, StoredLogs

_READ_BYTES = 256 << 10
_STREAMS = {b"o": "stdout", b"e": "stderr"}


class LogContent(Protocol):
    """The bytes of one file, wherever they are."""

    def size(self) -> int: ...

    def pieces(self, position: int) -> Iterator[bytes]:
        """What there is from `position` on, in order; nothing if the file is not there (yet, or any more)."""
        ...


@dataclass(frozen=True, slots=True)
class FolderLog:
    path: Path

    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def pieces(self, position: int) -> Iterator[bytes]:
        try:
            handle = self.path.open("rb")
        except FileNotFoundError:
            return
        with handle:
            handle.seek(position)
            while data := handle.read(_READ_BYTES):
                yield data


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    attempt: int
    rank: int
    content: LogContent

    @property
    def key(self) -> str:
        return f"{self.attempt}.{self.rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    at: float
    attempt: int
    rank: int
    stream: str
    text: str
    partial: bool
    start: int  # its place in its file
    end: int

    @property
    def key(self) -> str:
        return f"{self.attempt}.{self.rank}"


@dataclass(slots=True)
class LogCursor:
    positions: dict[str, int] = field(default_factory=dict)

    def encode(self) -> str:
        return base64.urlsafe_b64encode(json.dumps(self.positions, separators=(",", ":")).encode()).decode()

    @classmethod
    def decode(cls, text: str | None) -> LogCursor:
        if not text:
            return cls()
        try:
            data = json.loads(base64.b64decode(text.encode(), altchars=b"-_", validate=True))
            positions = {str(key): int(value) for key, value in data.items()}
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise InvalidInput(f"{text[:40]!r} is not a log cursor; give back what a page gave you") from error
        return cls(positions).checked()

    def checked(self) -> LogCursor:
        if any(not 0 <= value < 2**62 for value in self.positions.values()):
            raise InvalidInput("a log cursor's positions are out of range; give back what a page gave you")
        return self


def find_logs(
    log_dirs: Mapping[int, Sequence[str]], *, rank: int | None = None, stored: StoredLogs | None = None
) -> list[LogFile]:
    """The log files of each attempt (number -> places of its nodes), in order of attempt and rank."""
    places = {place: attempt for attempt, dirs in log_dirs.items() for text in dirs if (place := LogPlace.parse(text))}
    found = [file for attempt, dirs in log_dirs.items() for folder in dirs for file in _in_folder(attempt, folder)]
    if places and stored:
        found += [
            LogFile(attempt=places[log.place], rank=number, content=log)
            for log in stored.find(list(places))
            if (number := layout.rank_of_log(log.name)) is not None
        ]
    chosen = found if rank is None else [file for file in found if file.rank == rank]
    return sorted(chosen, key=lambda file: (file.attempt, file.rank))


def _in_folder(attempt: int, folder: str) -> list[LogFile]:
    return [
        LogFile(attempt=attempt, rank=number, content=FolderLog(Path(folder, name)))
        for name in _names(folder)
        if (number := layout.rank_of_log(name)) is not None
    ]


def read_page(files: Sequence[LogFile], cursor: LogCursor, *, limit: int, stream: str | None = None) -> list[LogRecord]:
    """The next records by time, at most `limit`, and moves the cursor behind them. Attempts come one after another."""
    page: list[LogRecord] = []
    for attempt in sorted({file.attempt for file in files}):
        readers = [_records(file, cursor.positions.get(file.key, 0)) for file in files if file.attempt == attempt]
        for record in merge(*readers, key=lambda r: r.at):
            if len(page) >= limit:
                return page
            cursor.positions[record.key] = record.end
            if stream is None or stream == record.stream:
                page.append(record)
    return page


def seek_tail(files: Sequence[LogFile], lines: int) -> LogCursor:
    """A cursor from which the last `lines` records of all files together are left."""
    cursor = LogCursor({file.key: file.content.size() for file in files})
    newest = sorted((record for file in files for record in _tail(file, lines)), key=lambda r: (r.attempt, r.at))
    for record in newest[-lines:] if lines else []:
        cursor.positions[record.key] = min(cursor.positions[record.key], record.start)
    return cursor


def _records(file: LogFile, position: int) -> Iterator[LogRecord]:
    """The complete records from `position` on."""
    rest = b""
    for piece in file.content.pieces(position):
        data = rest + piece
        end = data.rfind(b"\n") + 1
        rest = data[end:]
        for line in data[:end].split(b"\n")[:-1]:
            yield _record(file, line, position)
            position += len(line) + 1


def _record(file: LogFile, line: bytes, start: int) -> LogRecord:
    stamp, _, rest = line.partition(b" ")
    flag, _, text = rest.partition(b" ")
    return LogRecord(
        at=_seconds(stamp),
        attempt=file.attempt,
        rank=file.rank,
        stream=_STREAMS.get(flag[:1], "stdout"),
        text=text.decode("utf-8", "replace"),
        partial=flag.endswith(b"+"),
        start=start,
        end=start + len(line) + 1,
    )


def _tail(file: LogFile, lines: int) -> list[LogRecord]:
    """The last records of one file, reading only as much of its end as they need."""
    size, window = file.content.size(), 64 * 1024
    while True:
        start = max(0, size - window)
        records = list(_records(file, start))
        if start:
            records = records[1:]  # most likely the end of a line that began before
        if len(records) >= lines or start == 0:
            return records[-lines:] if lines else []
        window *= 4


@lru_cache(maxsize=64)
def _minute(stamp: bytes) -> float:
    return datetime.strptime(stamp.decode(), "%Y-%m-%dT%H:%M").replace(tzinfo=UTC).timestamp()


def _seconds(stamp: bytes) -> float:
    try:
        return _minute(stamp[:16]) + float(stamp[17:].rstrip(b"Z"))
    except ValueError:
        return 0.0


def _names(folder: str) -> list[str]:
    if folder.startswith(SCHEME):
        return []
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
