"""An engine without processes: attempts are entries in a FakeCluster, and time passes when its clock says so.

Commands it understands: `exit N` ends at once, `sleep S` ends well after S seconds, `train S` after S seconds of all
the run's attempts together, `stubborn` goes on until it is killed; anything else goes on until it is asked to stop, or
a test finishes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windlass.core.clock import Clock
from windlass.core.errors import Unavailable, WindlassError
from windlass.core.exits import Exit, ExitReason
from windlass.core.ids import attempt_id
from windlass.core.resources import Node
from windlass.engines.contract import Launch, Notice, Observation, Phase, StopKind


@dataclass(slots=True)
class FakeAttempt:
    launch: Launch
    launched_at: float
    stopped_at: float | None = None
    grace_s: float = 0.0
    stop_kind: StopKind = StopKind.CANCELLED
    notice: Notice | None = None
    end: tuple[float, Exit] | None = None
    released: bool = False
    recoveries: tuple[Mapping[str, Any], ...] = ()
    told: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class FakeCluster:
    """What lies on the nodes. It outlives the engines that use it, as real nodes outlive a server."""

    nodes: tuple[Node, ...] = (Node(engine="fake", name="fake-0", cpus=64.0, memory_bytes=1 << 40, gpus=8),)
    attempts: dict[str, FakeAttempt] = field(default_factory=dict)


class FakeEngine:
    name = "fake"
    type = "fake"
    launches_at_once = 1

    def __init__(
        self,
        clock: Clock,
        *,
        cluster: FakeCluster | None = None,
        notify: Callable[[], None] = lambda: None,
        start_s: float = 0.0,
    ) -> None:
        self.cluster = cluster if cluster is not None else FakeCluster()
        self.refusal: WindlassError | None = None  # raised by the next launches
        self.away = False  # nothing can be asked
        self.closed = False
        self._clock = clock
        self._notify = notify
        self._start_s = start_s

    def inventory(self) -> Sequence[Node]:
        self._check_reachable()
        return self.cluster.nodes

    def launch(self, launch: Launch) -> None:
        self._check_reachable()
        if self.refusal is not None:
            raise self.refusal
        if launch.attempt_id not in self.cluster.attempts:
            self.cluster.attempts[launch.attempt_id] = FakeAttempt(launch=launch, launched_at=self._clock.now())
            self._notify()

    def poll(self, attempt_ids: Sequence[str]) -> Mapping[str, Observation]:
        self._check_reachable()
        return {attempt_id: self._observe(attempt_id) for attempt_id in attempt_ids}

    def stop(self, attempt_id: str, *, grace_s: float, kind: StopKind = StopKind.CANCELLED) -> None:
        self._check_reachable()
        attempt = self._settled(attempt_id)
        if attempt is None or attempt.end is not None:
            return
        if attempt.stopped_at is None:
            attempt.stopped_at = self._clock.now()
            attempt.stop_kind = kind
            attempt.grace_s = grace_s
        else:
            attempt.grace_s = min(attempt.grace_s, self._clock.now() - attempt.stopped_at + grace_s)
        self._notify()

    def release(self, attempt_id: str) -> None:
        self._check_reachable()
        attempt = self._settled(attempt_id)
        if attempt is not None:
            if attempt.end is None:
                self.finish(attempt_id, Exit(reason=ExitReason.LOST, message="released while it ran"))
            attempt.released = True

    def close(self) -> None:
        self.closed = True

    # What tests make happen ---------------------------------------------------------------------------------------

    def finish(self, attempt_id: str, exit: Exit) -> None:
        """The attempt ends now, like this."""
        self.cluster.attempts[attempt_id].end = (self._clock.now(), exit)
        self._notify()

    def warn(self, attempt_id: str, notice: Notice) -> None:
        """A node of the attempt will be taken away."""
        self.cluster.attempts[attempt_id].notice = notice
        self._notify()

    def tell(self, attempt_id: str, usage: Mapping[str, Any]) -> None:
        """The attempt's samples say this too from now on."""
        self.cluster.attempts[attempt_id].told = dict(usage)

    def recover(self, attempt_id: str, **entry: Any) -> None:
        """Ranks of the attempt have died and come back, for one more time."""
        attempt = self.cluster.attempts[attempt_id]
        attempt.recoveries += ({"level": 1, "generation": len(attempt.recoveries) + 1, **entry},)
        self._notify()

    def forget(self, attempt_id: str) -> None:
        """The node has lost every trace of the attempt."""
        del self.cluster.attempts[attempt_id]

    # ----------------------------------------------------------------------------------------------------------------

    def _check_reachable(self) -> None:
        if self.away:
            raise Unavailable("the fake engine is away")

    def _observe(self, attempt_id: str) -> Observation:
        attempt = self._settled(attempt_id)
        if attempt is None:
            return Observation(phase=Phase.ABSENT)
        started_at = attempt.launched_at + self._start_s
        if attempt.end is not None:
            ended_at, exit = attempt.end
            began_at = started_at if started_at <= ended_at else None
            return Observation(
                phase=Phase.ENDED, started_at=began_at, ended_at=ended_at, exit=exit, recoveries=attempt.recoveries
            )
        if self._clock.now() < started_at:
            return Observation(phase=Phase.STARTING)
        usage = {"cpu_percent": 100.0, "rss_bytes": 1 << 20, "gpus": [], "ranks": [], **attempt.told}
        environment = {"host": "fake", "packages": {}, "gpus": []}
        return Observation(
            phase=Phase.RUNNING,
            started_at=started_at,
            usage=usage,
            environment=environment,
            notice=attempt.notice,
            recoveries=attempt.recoveries,
        )

    def _settled(self, attempt_id: str) -> FakeAttempt | None:
        """The attempt as it is by now."""
        attempt = self.cluster.attempts.get(attempt_id)
        if attempt is not None and attempt.end is None:
            ends = [end for end in self._ends_ahead(attempt) if end[0] <= self._clock.now()]
            attempt.end = min(ends, key=lambda end: end[0], default=None)
        return attempt

    def _ends_ahead(self, attempt: FakeAttempt) -> list[tuple[float, Exit]]:
        launch, started_at = attempt.launch, attempt.launched_at + self._start_s
        word, *rest = launch.argv
        ends = []
        if word == "exit":
            ends.append((started_at, _exited(int(rest[0]))))
        if word == "sleep":
            ends.append((started_at + float(rest[0]), _exited(0)))
        if word == "train":
            # One that was lost before anybody saw that it had ended has trained for longer than it had to.
            ends.append((started_at + max(0.0, float(rest[0]) - self._trained_s(launch)), _exited(0)))
        if launch.timeout_s is not None:
            ends.append((started_at + launch.timeout_s, Exit(reason=ExitReason.TIMEOUT, message="over its time")))
        if attempt.stopped_at is not None:
            patience_s = attempt.grace_s if word == "stubborn" else 0.0
            exit = Exit(reason=ExitReason(attempt.stop_kind), message=attempt.stop_kind.on_request)
            ends.append((attempt.stopped_at + patience_s, exit))
        return ends

    def _trained_s(self, launch: Launch) -> float:
        """By the attempts of the run before this one: it goes on where they were stopped."""
        found = (self.cluster.attempts.get(attempt_id(launch.run_id, number)) for number in range(1, launch.attempt))
        ends = [(one.launched_at + self._start_s, one.end[0]) for one in found if one is not None and one.end]
        return sum(max(0.0, ended_at - started_at) for started_at, ended_at in ends)


def _exited(code: int) -> Exit:
    if code == 0:
        return Exit(reason=ExitReason.COMPLETED, exit_code=0)
    return Exit(reason=ExitReason.EXIT_CODE, exit_code=code, rank=0, message=f"rank 0 exited with code {code}")
