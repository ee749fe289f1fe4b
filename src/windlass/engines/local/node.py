"""A node of this machine: its folder, and its processes by their ids. Everything is read anew."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from windlass.agent import kernel
from windlass.agent.environ import node_id
from windlass.core.exits import ExitReason
from windlass.engines.folders.node import NodeFolder

_SWEEPS = 50
_SWEEP_PAUSE_S = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNode(NodeFolder):
    def act_on_wish(self, now: float) -> None:
        """Tell the supervisor; where none has started, make sure that none ever will."""
        if self.settle_unstarted(now):
            return
        status = self.status()
        if status is not None and supervisor_lives(status):
            _send(status["pid"], signal.SIGTERM)

    def last_word(self, now: float) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Its outcome, if it has one, and its status. The status is not older than the outcome: what happened to the
        ranks is in the one before the other is written, and nobody looks again after an end."""
        outcome, status = self.outcome(), self.status()
        if outcome is None and status is not None and not supervisor_lives(status):
            outcome = self.bury(status, now)
            status = self.status() or status  # it may have ended between the two looks, and written both
        return outcome, status

    def bury(self, status: Mapping[str, Any], now: float) -> dict[str, Any] | None:
        """The supervisor is dead: end what is left of its processes and put `lost` on record, unless it had written
        an outcome before it died. None if somebody else is at it."""
        self.sweep(status)
        return self.record_end(ExitReason.LOST, "its supervisor died without leaving an outcome", now)

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


def supervisor_lives(status: Mapping[str, Any]) -> bool:
    return bool(status["boot_id"] == kernel.boot_id() and kernel.is_alive(status["pid"], status["pid_start"]))


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # it has just ended, or changed its user and is no longer ours
