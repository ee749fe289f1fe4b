"""What every engine offers: starting an attempt's processes on nodes, and telling what became of them.

An engine decides nothing: no retries, no placement, no record keeping. It holds no state that cannot be rebuilt
from what it left on its nodes, so a new controller can go on where a dead one stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from windlass.core.exits import Exit
from windlass.core.resources import Node, Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything an engine needs to start one attempt. Engine-neutral; a pure function of run, attempt, placement."""

    run_id: str
    attempt_id: str
    attempt: int
    placement: Placement
    argv: tuple[str, ...]  # never empty; a shell command arrives as ("/bin/sh", "-c", text)
    workers_per_node: int  # how many ranks a node has
    self_launching: bool  # argv is torchrun or alike: started once per node, it starts the workers itself
    env: Mapping[str, str]  # the same on every rank; the engine adds the per-rank variables
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)  # environment too, but never on disk
    code_digest: str | None = None  # the code snapshot to lay out as the working folder
    workdir: str | None = None  # or an existing folder to run in
    search_path: str | None = None  # the submitter's PATH, used when the node is the submitter's own machine
    timeout_s: float | None = None
    grace_s: float = 10.0
    warm: bool = True  # whether a pre-imported interpreter may be used


class Phase(StrEnum):
    ABSENT = "absent"  # the engine has never heard of it (or only got half-way): launch it (again)
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"  # the engine cannot tell now; nothing may be concluded


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    phase: Phase
    started_at: float | None = None  # when the first rank started
    ended_at: float | None = None
    exit: Exit | None = None  # set exactly when ENDED
    log_dirs: tuple[str, ...] = ()  # one folder per node rank, with the files of `windlass.agent.layout`
    usage: Mapping[str, Any] | None = None  # newest sample: {"cpu_percent", "rss_bytes", "gpus": [...], "ranks": [...]}
    environment: Mapping[str, Any] | None = None  # {"host", "python", "packages": {...}, "gpus": [...]} once known


class Engine(Protocol):
    """All methods are safe to repeat, also after a crash between any two of them, and safe to call from one
    controller thread at a time. None blocks for longer than a few hundred milliseconds.
    """

    name: str

    def inventory(self) -> Sequence[Node]:
        """The nodes there are now. Raises Unavailable if that cannot be told."""
        ...

    def launch(self, launch: Launch) -> None:
        """Start the attempt unless it has been started before (same attempt id). Returns once the intent is durable
        or handed over; failures of the processes themselves show up in `poll`. Raises LaunchFailed if this attempt
        can never start here, Unavailable if trying again may help.
        """
        ...

    def poll(self, attempt_ids: Sequence[str]) -> Mapping[str, Observation]:
        """What is known of each attempt; one call for all of them. Ended attempts stay visible until released."""
        ...

    def stop(self, attempt_id: str, *, grace_s: float) -> None:
        """Ask the attempt to end: SIGTERM to every rank, SIGKILL after the grace period. It then ends with the reason
        `cancelled`, also if it had not started yet. Nothing happens to an attempt that has ended or is absent.
        """
        ...

    def release(self, attempt_id: str) -> None:
        """The attempt's end is on record: stop whatever may be left of it and forget it. Logs stay."""
        ...

    def close(self) -> None:
        """Let go of connections and threads. Attempts go on running."""
        ...
