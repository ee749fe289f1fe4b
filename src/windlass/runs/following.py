"""Following a run: what has become new since the last look, as (kind, data) pairs. No I/O loop of its own: the API asks
again and again, with the position that the last look gave.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from windlass.core.errors import InvalidInput, NotFound
from windlass.db.database import Database
from windlass.runs import store, views
from windlass.runs.logs import LogDirs, LogQuery, first_cursor, line_dict, load_log_dirs
from windlass.runs.progress import load_marks
from windlass.runs.records import RunRecord
from windlass.runs.service import RunService
from windlass.tracking.logs import LogCursor, Scan, read_page
from windlass.tracking.store import load_summaries
from windlass.tracking.storedlogs import LogPlace
from windlass.tracking.system import without_system

_LINES_PER_LOOK = 10_000
_SCANNED_PER_LOOK = 64 << 20  # bytes: few lines of many may be wanted
# A run that is followed for long costs less: most looks are at its logs alone.
_EAGER_LOOKS = 50
_DATABASE_EVERY = 3
_WATCH_EVERY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """What a follower wants to hear of."""

    events: bool = False
    progress: bool = False
    logs: LogQuery | None = None


@dataclass(slots=True)
class Position:
    """How far a follower has come; survives a broken connection as its Last-Event-ID."""

    event: int = 0
    logs: LogCursor = field(default_factory=LogCursor)

    def encode(self) -> str:
        """`12;1.0:4096;1.1:512`: plain text, since every single log line carries one."""
        return ";".join([str(self.event), *(f"{key}:{place}" for key, place in self.logs.positions.items())])

    @classmethod
    def decode(cls, text: str) -> Position:
        event, *places = text.split(";")
        try:
            pairs = [place.split(":") for place in places]
            if not 0 <= int(event) < 2**63:
                raise ValueError("an event's number is out of range")
            return cls(int(event), LogCursor({key: int(at) for key, at in pairs}).checked())
        except ValueError as error:
            raise InvalidInput(f"{text[:40]!r} is not an event id of ours; give back the last one you got") from error


@dataclass(frozen=True, slots=True)
class News:
    kind: str
    data: dict[str, Any]
    id: str | None = None


class Follower:
    """One reader of one run. Not thread-safe; each look is one short read."""

    def __init__(
        self, db: Database, runs: RunService, run_id: str, channels: Channels, position: Position | None
    ) -> None:
        self._db = db
        self._runs = runs
        self._run_id = run_id
        self._channels = channels
        self._position = position or Position()
        self._fresh = position is None
        self._shown_version = -1
        self._shown_progress: dict[str, Any] | None = None
        self._looks = 0
        self._log_dirs: LogDirs = {}
        self._watched_at: float | None = None
        self.ended = False
        self.behind = False  # there is more to see at once

    def look(self) -> list[News]:
        self._looks += 1
        if self._log_dirs and self._looks > _EAGER_LOOKS and self._looks % _DATABASE_EVERY:
            return self._see_logs()
        with self._db.read() as tx:
            run = store.load_run(tx, self._run_id)
            if run is None:
                raise NotFound(f"there is no run '{self._run_id}'")
            news = [*self._run_news(tx, run), *self._event_news(tx), *self._progress_news(tx, run)]
            self._log_dirs = load_log_dirs(tx, run.id) if self._channels.logs else {}
        if not run.state.is_terminal:
            self._watch()
        news += self._see_logs()
        if run.state.is_terminal and not self.behind:
            # Logs are complete before an end is recorded, so a short page after it is the last one.
            self.ended = True
            news.append(News("end", self._runs.view(run.id).model_dump(mode="json"), self._position.encode()))
        return news

    def _watch(self) -> None:
        """Say that somebody follows, if the newest attempt's nodes are elsewhere: they send at once then."""
        now = time.monotonic()
        if self._watched_at is not None and now - self._watched_at < _WATCH_EVERY_S:
            return
        newest = self._log_dirs[max(self._log_dirs)] if self._log_dirs else ()
        attempts = {place.attempt_id for text in newest if (place := LogPlace.parse(text))}
        if attempts:
            self._watched_at = now
            self._runs.watch_logs(sorted(attempts))

    def _see_logs(self) -> list[News]:
        scan = Scan(_SCANNED_PER_LOOK)
        lines = self._log_news(self._channels.logs, self._log_dirs, scan) if self._channels.logs else []
        self.behind = len(lines) >= _LINES_PER_LOOK or scan.is_over
        return lines

    def _run_news(self, tx: Connection, run: RunRecord) -> list[News]:
        if not self._channels.progress or run.version == self._shown_version:
            return []
        self._shown_version = run.version
        return [News("run", self._runs.summary_in(tx, run).model_dump(mode="json"))]

    def _event_news(self, tx: Connection) -> list[News]:
        if not self._channels.events:
            return []
        news = []
        for row in store.load_events(tx, self._run_id, after=self._position.event):
            self._position.event = row.seq
            news.append(News("event", views.event_view(row).model_dump(mode="json"), self._position.encode()))
        return news

    def _progress_news(self, tx: Connection, run: RunRecord) -> list[News]:
        if not self._channels.progress:
            return []
        mark = views.progress_view(load_marks(tx, [run.id]).get(run.id))
        summaries = without_system(load_summaries(tx, [run.id]).get(run.id, {}))
        attempts = store.load_attempts(tx, run.id)
        usage = attempts[-1].usage if attempts else None
        data = {
            "progress": mark.model_dump(mode="json") if mark else None,
            "metrics": {name: views.finite(summary.last) for name, summary in summaries.items()},
            "usage": dict(usage) if usage else None,
        }
        if data == self._shown_progress or not (mark or summaries or usage):
            return []
        self._shown_progress = data
        return [News("progress", data)]

    def _log_news(self, wanted: LogQuery, log_dirs: LogDirs, scan: Scan) -> list[News]:
        files = wanted.files(log_dirs, self._runs.stored_logs)
        if self._fresh and files:
            self._fresh = False
            self._position.logs = first_cursor(files, wanted)
        # Each line carries the position right behind it, so a reader that is cut off misses and repeats nothing.
        behind = Position(self._position.event, LogCursor(dict(self._position.logs.positions)))
        news = []
        for record in read_page(files, self._position.logs, limit=_LINES_PER_LOOK, wanted=wanted.only, scan=scan):
            behind.logs.positions[record.key] = record.end
            news.append(News("log", line_dict(record), behind.encode()))
        return news
