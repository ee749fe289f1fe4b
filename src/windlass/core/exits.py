"""How an attempt ended. Engines report it, the retry policy reads it, records keep it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ExitReason(StrEnum):
    COMPLETED = "completed"  # every rank exited with 0
    EXIT_CODE = "exit_code"  # a rank exited with something else
    SIGNAL = "signal"  # a rank was killed by a signal nobody here sent
    OOM = "oom"  # out of memory: the kernel's killer, the run's own limit, or the framework said so
    TIMEOUT = "timeout"  # the run's time limit
    HANG = "hang"  # no step for many times as long as one usually takes
    LOST = "lost"  # its supervisor or node is gone and left no outcome
    CANCELLED = "cancelled"  # somebody asked
    PREEMPTED = "preempted"  # warned and stopped to make room: spot notice, eviction, a higher priority
    LAUNCH_FAILED = "launch_failed"  # no rank could be started: command, interpreter or code missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    reason: ExitReason
    exit_code: int | None = None
    signal: int | None = None
    rank: int | None = None  # the global rank that failed first
    message: str = ""
    # Equal for failures that are the same failure: a traceback's frames and error without addresses and numbers.
    fingerprint: str | None = None
    traceback: str | None = None  # of that rank, if it ended with one
    trouble: str | None = None  # what kind it is, where that is known: a name of `windlass.agent.patterns`
    node_rank: int | None = None  # the node it happened on, and its name
    node: str | None = None

    @property
    def shell_code(self) -> int:
        """What a shell would show for it: the `windlass run` command exits with this."""
        if self.reason is ExitReason.COMPLETED:
            return 0
        if self.reason is ExitReason.TIMEOUT:
            return 124
        if self.reason is ExitReason.CANCELLED:
            return 130
        if self.signal:
            return 128 + self.signal
        return self.exit_code or 1
