"""One node of an attempt as its folder and its processes show it. Everything is read anew: nothing here is state."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.agent import kernel, layout, outcome
from windlass.agent.environ import node_id
from windlass.agent.files import read_json, write_json
from windlass.engines.contract import StopKind

_SWEEPS = 50
_SWEEP_PAUSE_S = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFolder:
    path: Path
    attempt_id: str
    rank: int

    def plan(self) -> dict[str, Any] | None:
        return self._read(layout.PLAN)

    def status(self) -> dict[str, Any] | None:
        return self._read(layout.STATUS)

    def outcome(self) -> dict[str, Any] | None:
        return self._read(layout.OUTCOME)

    def usage(self) -> dict[str, Any] | None:
        return self._read(layout.USAGE)

    def environment(self) -> dict[str, Any] | None:
        return self._read(layout.ENVIRONMENT)

    def write_plan(self, plan: Mapping[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(str(self.path / layout.PLAN), plan, mode=0o600)

    def wish_to_stop(self, *, grace_s: float, reason: str, kind: StopKind = StopKind.CANCELLED) -> None:
        """On disk before anyone is told, so a supervisor that is only starting sees it too."""
        write_json(str(self.path / layout.STOP), {"kind": kind.value, "grace_s": grace_s, "reason": reason})

    def is_asked_to_stop(self) -> bool:
        return (self.path / layout.STOP).exists()

    def act_on_wish(self, now: float) -> None:
        """Tell the supervisor; where none has started, make sure that none ever will."""
        if self.status() is None:
            with self._lock() as held:
                if held and self.status() is None and self.outcome() is None:
                    wish = self._read(layout.STOP)
                    assert wish is not None
                    outcome.write(str(self.path), outcome.never_started(wish["kind"], wish["reason"], now))
                    return
        status = self.status()
        if status is not None and supervisor_lives(status):
            _send(status["pid"], signal.SIGTERM)

    def bury(self, status: Mapping[str, Any], now: float) -> dict[str, Any] | None:
        """The supervisor is dead: end what is left of its processes and put `lost` on record, unless it had written
        an outcome before it died. None if somebody else is at it."""
        self.sweep(status)
        with self._lock() as held:
            if held and self.outcome() is None:
                message = "its supervisor died without leaving an outcome"
                ended = outcome.summary(reason="lost", message=message, started_at=status["started_at"], ended_at=now)
                outcome.write(str(self.path), ended)
        return self.outcome()

    def finish(self, now: float) -> None:
        """Whatever this node is doing, it is over."""
        if self.outcome() is not None:
            return
        status = self.status()
        if status is None:
            self.wish_to_stop(grace_s=0.0, reason="released before it started")
            self.act_on_wish(now)
            status = self.status()
        if status is not None and self.outcome() is None:
            if supervisor_lives(status):
                _send(status["pid"], signal.SIGKILL)
            self.bury(status, now)

    def tidy(self) -> None:
        """Remove what only a live attempt needs; plans hold the user's environment."""
        for name in (layout.PLAN, layout.STATUS, layout.STOP, layout.LOCK):
            (self.path / name).unlink(missing_ok=True)

    def sweep(self, status: Mapping[str, Any]) -> None:
        """Kill every process of the node, in its session or carrying its mark, until none is found."""
        if status["boot_id"] != kernel.boot_id():
            return
        for _ in range(_SWEEPS):
            found = list(self._strays(status))
            if not found:
                return
            for pid in found:
                _send(pid, signal.SIGKILL)
            time.sleep(_SWEEP_PAUSE_S)

    def _strays(self, status: Mapping[str, Any]) -> Iterator[int]:
        leader = kernel.stat(status["sid"])
        session_is_ours = leader is None or leader.start == status["pid_start"]
        mark = node_id(self.attempt_id, self.rank, str(self.path))
        for pid in kernel.all_pids():
            found = kernel.stat(pid)
            if found is None or found.state in "ZX" or found.start < status["pid_start"]:
                continue
            if (session_is_ours and found.session == status["sid"]) or kernel.has_mark(pid, mark):
                yield pid

    @contextmanager
    def _lock(self) -> Iterator[bool]:
        """Only for a node without a living supervisor: a starting one that meets the lock taken gives up."""
        fd = os.open(self.path / layout.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
        except BlockingIOError:
            yield False
        finally:
            os.close(fd)

    def _read(self, name: str) -> dict[str, Any] | None:
        return read_json(str(self.path / name))


def supervisor_lives(status: Mapping[str, Any]) -> bool:
    return bool(status["boot_id"] == kernel.boot_id() and kernel.is_alive(status["pid"], status["pid_start"]))


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # it has just ended, or changed its user and is no longer ours
