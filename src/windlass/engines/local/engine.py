"""The local engine: attempts as supervised processes of this machine. What it knows, it reads from node folders."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from windlass.agent import memory
from windlass.agent.ports import free_port
from windlass.core.clock import Clock
from windlass.core.resources import Node
from windlass.engines.contract import CodeStore, Launch, Observation, Phase, StopKind, refuse_image
from windlass.engines.folders.faults import explain_os_error
from windlass.engines.folders.observing import NodeLook, decide_stop, observe, told_recoveries
from windlass.engines.folders.plans import attempt_dir
from windlass.engines.local.listener import Listener
from windlass.engines.local.machine import Machine, measure_machine
from windlass.engines.local.node import LocalNode
from windlass.engines.local.plans import render_node_plans
from windlass.engines.local.sockets import socket_dir
from windlass.engines.local.warmpool import PREIMPORT, WarmPool

_HANDOVER_PATIENCE_S = 60.0
_START_PATIENCE_S = 10.0
_SWEEP_EVERY_S = 60.0
_NOBODY = ""


@dataclass(slots=True)
class _Seen:
    """What spares reading files again. Losing it costs time only."""

    nodes: tuple[LocalNode, ...]
    grace_s: float
    asked: dict[int, tuple[str, float]] = field(default_factory=dict)  # node rank: launcher, when
    environment: Mapping[str, Any] | None = None
    ended: Observation | None = None


class LocalEngine:
    type = "local"
    launches_at_once = 1

    def __init__(
        self,
        home: Path,
        blobs_dir: Path,
        *,
        notify: Callable[[], None],
        clock: Clock,
        name: str = "local",
        code: CodeStore | None = None,
        nodes: int = 1,
        labels: Mapping[str, str] | None = None,
        price_per_hour: float = 0.0,
        spot: bool = False,
        warm: bool = True,
        preimport: Sequence[str] = PREIMPORT,
    ) -> None:
        self.name = name
        self._home = home.absolute()
        self._blobs_dir = blobs_dir.absolute()
        self._clock = clock
        self._code = code
        self._nodes = nodes
        self._labels = labels or {}
        self._price_per_hour = price_per_hour
        self._spot = spot
        self._warm = warm
        self._home.mkdir(parents=True, exist_ok=True)
        self._machine: Machine | None = None
        self._sweep_at = 0.0
        self._pool = WarmPool(self._home, preimport=preimport)
        self._seen: dict[str, _Seen] = {}
        self._listener = Listener(socket_dir(self._home) / "engine.sock", notify)

    def inventory(self) -> Sequence[Node]:
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + _SWEEP_EVERY_S
            memory.sweep()  # runs that were not to go on have left copies, and it may be long until another starts
        return self._measured().inventory()

    def launch(self, launch: Launch) -> None:
        refuse_image(launch, self.name)
        try:
            self._launch(launch)
        except OSError as error:
            raise explain_os_error(error, launch.attempt_id, self._home) from error

    def _launch(self, launch: Launch) -> None:
        seen = self._look_up(launch.attempt_id)
        first_time = seen is None
        if seen is None:
            seen = self._write_plans(launch)
        for node in seen.nodes:
            if node.status() is not None or node.outcome() is not None:
                continue
            plan = node.plan()
            if plan is None:
                continue  # released
            if first_time:
                asked = self._pool.hand_over(plan, launch.secrets, warm=launch.warm and self._warm)
            else:
                # Somebody was asked before and did not do it: this time nobody is in between.
                self._pool.start_directly(plan, launch.secrets)
                asked = _NOBODY
            seen.asked[node.rank] = (asked, self._clock.now())

    def poll(self, attempt_ids: Sequence[str]) -> Mapping[str, Observation]:
        self._pool.reap()
        return {attempt_id: self._observe(attempt_id) for attempt_id in attempt_ids}

    def stop(self, attempt_id: str, *, grace_s: float, kind: StopKind = StopKind.CANCELLED) -> None:
        seen = self._look_up(attempt_id)
        if seen is not None:
            self._stop(seen.nodes, grace_s=grace_s, reason=kind.on_request, kind=kind)

    def release(self, attempt_id: str) -> None:
        seen = self._look_up(attempt_id)
        if seen is not None:
            for node in seen.nodes:
                node.finish(self._clock.now())
                node.tidy()
        self._seen.pop(attempt_id, None)

    def close(self) -> None:
        self._listener.close()
        self._pool.close()

    def _measured(self) -> Machine:
        if self._machine is None:
            measured = measure_machine(engine=self.name)
            self._machine = replace(
                measured, nodes=self._nodes, labels=self._labels, price_per_hour=self._price_per_hour, spot=self._spot
            )
        return self._machine

    def _write_plans(self, launch: Launch) -> _Seen:
        """All plans are written before any node is started, so a missing one means that none was."""
        if self._code is not None and launch.code_digest is not None and launch.workdir is None:
            self._code.lay_in(launch.code_digest, self._blobs_dir)
        plans = render_node_plans(
            launch,
            home=self._home,
            blobs_dir=self._blobs_dir,
            machine=self._measured(),
            notify_socket=str(self._listener.path),
            master_port=0 if len(launch.placement.shares) == 1 else free_port(),
        )
        Path(plans[0]["workdir"]).parent.mkdir(parents=True, exist_ok=True)
        for plan in plans:
            if plan["code"] is None and launch.workdir is None:
                Path(plan["workdir"]).mkdir(parents=True, exist_ok=True)
            folder = LocalNode(path=Path(plan["node_dir"]), attempt_id=launch.attempt_id, rank=plan["node_rank"])
            folder.write_plan(plan)
        seen = self._look_up(launch.attempt_id)
        assert seen is not None
        return seen

    def _look_up(self, attempt_id: str) -> _Seen | None:
        """None for an attempt that was never written down whole."""
        if attempt_id in self._seen:
            return self._seen[attempt_id]
        folder = attempt_dir(self._home, attempt_id)
        there = _nodes_in(folder, attempt_id, len(list(folder.glob("node-*"))))
        if there and all(node.outcome() is not None for node in there):
            return _Seen(nodes=there, grace_s=0.0)  # also after its release, and whatever became of its plans
        plan = LocalNode(path=folder / "node-0", attempt_id=attempt_id, rank=0).plan()
        if plan is None:
            return None
        nodes = _nodes_in(folder, attempt_id, plan["nnodes"])
        if any(node.plan() is None for node in nodes):
            return None
        return self._seen.setdefault(attempt_id, _Seen(nodes=nodes, grace_s=plan["grace_s"]))

    def _observe(self, attempt_id: str) -> Observation:
        seen = self._look_up(attempt_id)
        if seen is None:
            return Observation(phase=Phase.ABSENT)
        if seen.ended is not None:
            return seen.ended
        looks = [self._look_at(node, seen.asked.get(node.rank)) for node in seen.nodes]
        if seen.environment is None:
            seen.environment = seen.nodes[0].environment()
        observation = observe(looks, environment=seen.environment)
        if observation.phase is Phase.ENDED:
            seen.ended = observation
        elif (rest := decide_stop(looks)) is not None:
            pairs = zip(seen.nodes, looks, strict=True)
            left = [node for node, look in pairs if look.outcome is None and not node.is_asked_to_stop()]
            self._stop(left, grace_s=seen.grace_s, reason=rest.reason, kind=rest.kind)
        return observation

    def _look_at(self, node: LocalNode, asked: tuple[str, float] | None) -> NodeLook:
        outcome, status = node.last_word(self._clock.now())
        started_at, state = None, None
        if outcome is not None:
            phase, started_at = Phase.ENDED, outcome["started_at"]
        elif status is None:
            phase = Phase.STARTING if self._will_start(asked) else Phase.ABSENT
        else:
            started_at, state = status["started_at"], status["state"]
            phase = Phase.STARTING if state == "starting" else Phase.RUNNING
        return NodeLook(
            log_dir=str(node.path),
            phase=phase,
            outcome=outcome,
            started_at=started_at,
            usage=node.usage(),
            state=state,
            recoveries=told_recoveries(status),
        )

    def _will_start(self, asked: tuple[str, float] | None) -> bool:
        """Whether whoever was asked may still come to it."""
        if asked is None:
            return False
        launcher, at = asked
        waited_s = self._clock.now() - at
        if launcher == _NOBODY:
            return waited_s < _START_PATIENCE_S
        return waited_s < _HANDOVER_PATIENCE_S and self._pool.is_there(launcher)

    def _stop(
        self, nodes: Sequence[LocalNode], *, grace_s: float, reason: str, kind: StopKind = StopKind.CANCELLED
    ) -> None:
        """The wish is known to all nodes before the first one acts on it: ranks that fail because their peers on
        other nodes have gone are not failures then."""
        running = [node for node in nodes if node.outcome() is None]
        for node in running:
            node.wish_to_stop(grace_s=grace_s, reason=reason, kind=kind)
        for node in running:
            node.act_on_wish(self._clock.now())


def _nodes_in(folder: Path, attempt_id: str, count: int) -> tuple[LocalNode, ...]:
    return tuple(LocalNode(path=folder / f"node-{rank}", attempt_id=attempt_id, rank=rank) for rank in range(count))
