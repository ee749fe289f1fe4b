"""One node of an attempt as its folder shows it. Everything is read anew: nothing here is state."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.agent import layout, outcome
from windlass.agent.files import read_if_whole, read_json, write_json
from windlass.core.exits import ExitReason
from windlass.engines.contract import StopKind


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFolder:
    path: Path
    attempt_id: str
    rank: int

    def plan(self) -> dict[str, Any] | None:
        return self._read(layout.PLAN)

    def status(self) -> dict[str, Any] | None:
        return self._read_until_end(layout.STATUS)

    def outcome(self) -> dict[str, Any] | None:
        return self._read(layout.OUTCOME)

    def usage(self) -> dict[str, Any] | None:
        return read_if_whole(str(self.path / layout.USAGE))

    def environment(self) -> dict[str, Any] | None:
        return read_if_whole(str(self.path / layout.ENVIRONMENT))

    def write_plan(self, plan: Mapping[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(str(self.path / layout.PLAN), plan, mode=0o600)

    def wish_to_stop(self, *, grace_s: float, reason: str, kind: StopKind = StopKind.CANCELLED) -> None:
        """On disk before anyone is told, so a supervisor that is only starting sees it too."""
        write_json(str(self.path / layout.STOP), {"kind": kind.value, "grace_s": grace_s, "reason": reason})

    def wish(self) -> dict[str, Any] | None:
        return self._read_until_end(layout.STOP)

    def is_asked_to_stop(self) -> bool:
        return (self.path / layout.STOP).exists()

    def settle_unstarted(self, now: float) -> bool:
        """Where no supervisor has started, make sure that none ever will: the wish to stop becomes the outcome.
        Whether that was so."""
        if self.status() is None:
            with self.lock() as held:
                if held and self.status() is None and self.outcome() is None:
                    wish = self.wish()
                    assert wish is not None
                    outcome.write(str(self.path), outcome.never_started(wish["kind"], wish["reason"], now))
                    return True
        return False

    def record_end(self, reason: ExitReason, message: str, now: float) -> dict[str, Any] | None:
        """Put an end on record for a supervisor that will not, unless it had written one before it died. None if
        somebody else is at it, such as the supervisor itself."""
        status = self.status()
        with self.lock() as held:
            if held and self.outcome() is None:
                started_at = status["started_at"] if status is not None else None
                ended = outcome.summary(reason=reason.value, message=message, started_at=started_at, ended_at=now)
                outcome.write(str(self.path), ended)
        return self.outcome()

    def tidy(self) -> None:
        """Remove what only a live attempt needs; plans hold the user's environment."""
        for name in (layout.PLAN, layout.STATUS, layout.STOP, layout.LOCK):
            (self.path / name).unlink(missing_ok=True)

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Only for a node without a living supervisor: a starting one that meets the lock taken gives up."""
        fd = os.open(self.path / layout.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
        except BlockingIOError:
            yield False
        finally:
            os.close(fd)

    def _read_until_end(self, name: str) -> dict[str, Any] | None:
        """Cut short or overwritten, it leaves unknown what becomes of the node; but not once the end is on record."""
        try:
            return self._read(name)
        except (OSError, ValueError, RecursionError):
            if outcome.exists(str(self.path)):
                return None
            raise

    def _read(self, name: str) -> dict[str, Any] | None:
        return read_json(str(self.path / name))
