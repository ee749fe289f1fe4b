"""What every engine offers: starting an attempt's processes on nodes, and telling what became of them.

An engine decides nothing: no retries, no placement, no record keeping. It holds no state that cannot be rebuilt
from what it left on its nodes, so a new controller can go on where a dead one stopped. What it cannot tell, it does
not guess: `Unavailable` for all, or the phase UNKNOWN for one attempt, and nothing happens until it can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from windlass.core.clock import Clock
from windlass.core.errors import LaunchFailed
from windlass.core.exits import Exit
from windlass.core.resources import Node, Placement
from windlass.core.roles import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlace:
    """Ranks that fail start again within the attempt where `windlass.agent.recovery` says so."""

    most: int  # times in a row without a new step
    errors_too: bool  # also for failures of the program itself
    key: str = field(repr=False)  # what the supervisors of a gang know each other by


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
    # Both below `env`. Of the server's own machine (HOME, TMPDIR …): for nodes that are that machine; others have their
    # own. Of the submitter's shell (VIRTUAL_ENV, PYTHONPATH …): goes where `search_path` goes.
    host_env: Mapping[str, str] = field(default_factory=dict)
    origin_env: Mapping[str, str] = field(default_factory=dict)
    roles: tuple[Role, ...] = ()  # with some, each rank runs its role's command instead of `argv`
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)  # environment too, but never on disk
    code_digest: str | None = None  # the code snapshot to lay out as the working folder
    workdir: str | None = None  # or an existing folder to run in
    search_path: str | None = None  # the submitter's PATH, for nodes that see the same file system, outside of images
    timeout_s: float | None = None
    grace_s: float = 10.0
    hang: float | str = "auto"  # how long a rank that tells steps may tell none, in seconds; "auto": learned; "off"
    first_attempt: int = 1  # since the run was last resumed: what earlier ones left in the nodes' memory is not for it
    in_place: InPlace | None = None  # None: the first failure of a rank ends the attempt
    warm: bool = True  # whether a pre-imported interpreter may be used
    project: str = "default"  # whose it is; not taken from `env`, which users write
    image: str | None = None  # a container image to run in, where the engine has containers
    tpus: bool = False  # what the placement calls GPUs are TPUs
    log_limit_bytes: int | None = None  # of one rank's output; beyond it, only the end is kept
    tensorboard: bool | str = True  # whether event files become metrics; or the folder that has them
    options: Mapping[str, Any] = field(default_factory=dict)  # the spec's section for this type of engine


class Phase(StrEnum):
    ABSENT = "absent"  # the engine has never heard of it (or only got half-way): launch it (again)
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"  # the engine cannot tell now; nothing may be concluded


class StopKind(StrEnum):
    """Why an attempt is asked to end; it then ends with the exit reason of the same name. One that is preempted has
    completed if its work was done when it was told, and it says so: see `windlass.agent.conclusion`."""

    CANCELLED = "cancelled"
    PREEMPTED = "preempted"

    @property
    def on_request(self) -> str:
        """What engines say of an attempt that ended so. They know that it was asked to, not why."""
        return f"{self} on request"

    COMPLETED = "completed"  # an engine's own: all that the attempt is for has ended well, the rest only serves it


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A node will be taken away. The controller answers with a warned stop: SIGTERM and what is left as grace."""

    message: str  # "node n3 will be reclaimed (spot)"
    deadline: float | None = None  # when it will be gone, if that is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    phase: Phase
    started_at: float | None = None  # when the first rank started
    ended_at: float | None = None
    exit: Exit | None = None  # set exactly when ENDED
    # One place per node rank: a folder with the files of `windlass.agent.layout`, or `stored://<attempt>/<node rank>`
    # for what a node sent over HTTP (see `windlass.nodes`).
    log_dirs: tuple[str, ...] = ()
    usage: Mapping[str, Any] | None = None  # newest sample: {"cpu_percent", "rss_bytes", "gpus": [...], "ranks": [...]}
    environment: Mapping[str, Any] | None = None  # {"host", "python", "packages": {...}, "gpus": [...]} once known
    notice: Notice | None = None
    detail: str | None = None  # what the engine says about it, for people: "pending in Slurm: Priority"
    # Of those within the attempt, in order: what `windlass.agent.recovery` renders. The newest are there, not all.
    recoveries: tuple[Mapping[str, Any], ...] = ()


def refuse_image(launch: Launch, engine: str) -> None:
    """For engines without containers: running without the image would not be what was asked for."""
    if launch.image is not None:
        raise LaunchFailed(
            f"engine '{engine}' has no containers, and the run wants the image {launch.image}",
            hint="name an engine that has them in `engine:`, or leave out `image:`",
        )


class Engine(Protocol):
    """All methods are safe to repeat, also after a crash between any two of them, and safe to call from one
    controller thread at a time. None blocks for longer than a few hundred milliseconds.

    Where `launches_at_once` is more than one, so many other threads may call `launch` at the same time, each for an
    attempt of its own; meanwhile nothing else is asked about these attempts, and a launch may take longer.
    """

    name: str  # under which it is configured
    type: str  # local, ray, slurm, kubernetes
    launches_at_once: int  # 1: `launch` is called like all the others, by the one controller thread

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

    def stop(self, attempt_id: str, *, grace_s: float, kind: StopKind = StopKind.CANCELLED) -> None:
        """Ask the attempt to end: SIGTERM to every rank, SIGKILL after the grace period. It then ends with the reason
        that `kind` names, also if it had not started yet. Asked again, it can be hastened, not slowed. Nothing happens
        to an attempt that has ended or is absent.
        """
        ...

    def release(self, attempt_id: str) -> None:
        """The attempt's end is on record: stop whatever may be left of it and forget it. Logs stay."""
        ...

    def close(self) -> None:
        """Let go of connections and threads. Attempts go on running."""
        ...


class CodeStore(Protocol):
    """Where code snapshots come from."""

    def lay_in(self, digest: str, folder: Path) -> None:
        """Have the snapshot's manifest and every blob of it in `folder`, as `<first two digits>/<sha256>`; what is
        there already is not fetched again. Raises LaunchFailed if the snapshot is incomplete, Unavailable if its store
        is away.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What a node that reaches the server over HTTP has told so far: the content of its folder's small files."""

    node_rank: int
    reported_at: float | None = None  # None: not heard of yet
    address: str | None = None
    status: Mapping[str, Any] | None = None
    outcome: Mapping[str, Any] | None = None
    usage: Mapping[str, Any] | None = None
    environment: Mapping[str, Any] | None = None
    notice: Notice | None = None
    beat_s: float = 0.5  # how often it is to be heard of; see `engines.remote.silence`


class NodeBook(Protocol):
    """For engines whose nodes share no folder with the server: the agent on the node fetches its plan from the API and
    reports there; engine and API meet in the database. Every method is idempotent and may raise Unavailable.
    """

    def prepare(self, attempt_id: str, plans: Sequence[Mapping[str, Any]], secrets: Mapping[str, str]) -> None:
        """Keep one plan per node rank for its agent to fetch. Plans of a prepared attempt are not replaced. Secrets
        are sealed in the store and only sent to the attempt's own nodes.
        """
        ...

    def token(self, attempt_id: str, node_rank: int) -> str:
        """What the node's agent shows to the API. The same every time; good until the attempt is closed."""
        ...

    def load(self, attempt_ids: Sequence[str]) -> Mapping[str, Sequence[NodeReport]]:
        """The reports of each prepared attempt, one per node rank, in order; attempts never prepared are left out."""
        ...

    def wish_to_stop(self, attempt_id: str, *, grace_s: float, kind: StopKind, reason: str) -> None:
        """Told to every node with the answer to its next report. A node that has not started then never will."""
        ...

    def close(self, attempt_id: str) -> None:
        """Nodes that still report are told that the attempt is over, and kill what is left of it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """What the composition root gives every engine when it opens it."""

    name: str  # under which it is configured; nodes and attempts carry it
    home: Path
    clock: Clock
    notify: Callable[[], None]  # something has changed: look now. Safe from any thread
    code: CodeStore
    nodes: NodeBook
    server_url: str | None  # where nodes reach the API; None: it is not known outside this machine
