"""Reading rank logs, from the folders that attempts leave behind or from the store: pages, tails, times and following,
merged over ranks by time.

A cursor holds the byte position in every file, so a reader that comes back continues without loss or repeats.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import Protocol

from windlass.agent import layout
from windlass.core.errors import InvalidInput
from windlass.tracking.logpattern import LogPattern
from windlass.tracking.storedlogs import SCHEME, LogPlace, StoredLogs
from windlass.tracking.unfinished import Unfinished, goes_on, may_go_on, stream_of, text_at

_READ_BYTES = 256 << 10
_SEEK_BYTES = 64 << 10
_LOOKED_BACK_BYTES = 256 << 20
_OPENED_BYTES = 256 << 10  # looked back over, for the beginning of a line
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFilter:
    """Which records are wanted."""

    stream: str | None = None
    pattern: LogPattern | None = None
    since: float | None = None
    until: float | None = None

    def takes(self, record: LogRecord) -> bool:
        """By all but the pattern."""
        return (self.stream is None or self.stream == record.stream) and (self.since is None or record.at >= self.since)


EVERYTHING = LogFilter()


@dataclass(slots=True)
class Scan:
    """How many bytes may be looked through for one page: few lines of many may be wanted. Of each file some are in any
    case, so that every page gets on."""

    most_bytes: int
    seen_bytes: int = 0
    is_over: bool = False  # somebody wanted more


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


def read_page(
    files: Sequence[LogFile],
    cursor: LogCursor,
    *,
    limit: int,
    wanted: LogFilter = EVERYTHING,
    scan: Scan | None = None,
) -> list[LogRecord]:
    """The next records by time, at most `limit`, and moves the cursor behind them. Attempts come one after another.
    Fewer than `limit` are the last there are, unless `scan` is over.
    """
    page: list[LogRecord] = []
    scan = scan or Scan(2**63)
    for attempt in sorted({file.attempt for file in files}):
        readers = [_wanted(file, cursor, wanted, scan) for file in files if file.attempt == attempt]
        for record in merge(*readers, key=lambda r: r.at):
            if len(page) >= limit or scan.is_over:
                return page
            cursor.positions[record.key] = record.end
            page.append(record)
        if scan.is_over:
            return page
    return page


def seek_tail(files: Sequence[LogFile], lines: int, wanted: LogFilter = EVERYTHING) -> LogCursor:
    """A cursor from which the last `lines` records of all files together are left."""
    cursor = LogCursor({file.key: file.content.size() for file in files})
    last = (record for file in files for record in _tail(file, lines, wanted))
    newest = sorted(last, key=lambda r: (r.attempt, r.at))
    for record in newest[-lines:] if lines else []:
        cursor.positions[record.key] = min(cursor.positions[record.key], record.start)
    return cursor


def seek_time(files: Sequence[LogFile], at: float) -> LogCursor:
    """A cursor a little before the first record of that time in each file, found without reading what is before it."""
    return LogCursor({file.key: _find_time(file, at) for file in files})


def _find_time(file: LogFile, at: float) -> int:
    low, high = 0, file.content.size()
    while high - low > _SEEK_BYTES:
        middle = (low + high) // 2
        # What begins in the middle of a line is no record; the one after it is.
        found = next((record for record in islice(_records(file, middle), 1, None)), None)
        if found is None or found.start >= high or found.at >= at:
            high = middle
        else:
            low = found.start
    return low


def _wanted(file: LogFile, cursor: LogCursor, wanted: LogFilter, scan: Scan) -> Iterator[LogRecord]:
    """The records of a file that are wanted. Moves its cursor over what is not."""
    position = cursor.positions.get(file.key, 0)
    opened: Unfinished | None = None
    for lines, start in _blocks(file, position):
        opened = _unfinished_at(file, start, wanted.pattern) if opened is None else opened
        if start > position and scan.seen_bytes >= scan.most_bytes:
            scan.is_over = True
            return
        scan.seen_bytes += len(lines)
        if wanted.pattern is None or opened or may_go_on(lines) or wanted.pattern.may_be_in(lines):
            for record in _read_block(file, lines, start, wanted, opened):
                if wanted.until is not None and record.at > wanted.until:
                    return
                cursor.positions[file.key] = record.start
                yield record
        cursor.positions[file.key] = max(start + len(lines), cursor.positions.get(file.key, 0))


def _records(file: LogFile, position: int, wanted: LogFilter = EVERYTHING) -> Iterator[LogRecord]:
    """The complete records from `position` on."""
    opened: Unfinished | None = None
    for lines, start in _blocks(file, position):
        opened = _unfinished_at(file, start, wanted.pattern) if opened is None else opened
        yield from _read_block(file, lines, start, wanted, opened)


def _blocks(file: LogFile, position: int) -> Iterator[tuple[bytes, int]]:
    """Whole lines from `position` on, as many as come together, and where they begin."""
    rest = b""
    for piece in file.content.pieces(position):
        data = rest + piece if rest else piece
        end = data.rfind(b"\n") + 1
        rest = data[end:]
        if end:
            yield data[:end], position
            position += end


def _unfinished_at(file: LogFile, position: int, pattern: LogPattern | None) -> Unfinished:
    """What a search has to know of lines that began before it, from the records right before its first."""
    opened = Unfinished()
    begin = max(0, position - _OPENED_BYTES)
    if pattern is None or not position:
        return opened
    before = b""
    for piece in file.content.pieces(begin):
        before += piece
        if begin + len(before) >= position:
            break
    records = before[: position - begin].split(b"\n")[:-1]
    for record in records[1:] if begin else records:
        opened.add(record)
    opened.told = {stream for stream, text in opened.lines.items() if pattern.matches(text)}
    return opened


def _read_block(file: LogFile, lines: bytes, start: int, wanted: LogFilter, opened: Unfinished) -> Iterator[LogRecord]:
    pattern = wanted.pattern
    if pattern is not None and (opened or may_go_on(lines)):
        yield from _search_joined(file, lines, start, wanted, opened)
        return
    for line in lines.split(b"\n")[:-1]:
        if pattern is None or pattern.matches(line[text_at(line) :]):
            record = _record(file, line, start)
            if wanted.takes(record):
                yield record
        start += len(line) + 1


def _search_joined(
    file: LogFile, lines: bytes, start: int, wanted: LogFilter, opened: Unfinished
) -> Iterator[LogRecord]:
    """A line that came in pieces is searched as a whole and told by its last one, with the text of all. One that is not
    at its end yet is told as far as it goes; what is told once more begins with a carriage return."""
    rows, pattern = lines.split(b"\n")[:-1], wanted.pattern
    newest = {stream_of(row): number for number, row in enumerate(rows)}
    for number, row in enumerate(rows):
        stream, was_told = stream_of(row), stream_of(row) in opened.told
        text = opened.add(row)
        is_newest = not goes_on(row) or newest[stream] == number
        if is_newest and pattern is not None and pattern.matches(text):
            again = b"\r" if was_told and not text.startswith(b"\r") else b""
            record = replace(_record(file, row, start), text=(again + text).decode("utf-8", "replace"))
            if wanted.takes(record):
                opened.note_told(stream)
                yield record
        start += len(row) + 1


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


def _tail(file: LogFile, lines: int, wanted: LogFilter) -> list[LogRecord]:
    """The last records of one file, reading only as much of its end as they need; where few are wanted, up to a
    bound."""
    size, window = file.content.size(), 64 * 1024
    while True:
        start = max(0, size - window)
        records = _records(file, start, wanted)
        if start:
            first = next(_records(file, start), None)  # most likely the end of a line that began before
            records = (record for record in records if first is None or record.start > first.start)
        found = list(records)
        if len(found) >= lines or start == 0 or window >= _LOOKED_BACK_BYTES:
            return found[-lines:] if lines else []
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
