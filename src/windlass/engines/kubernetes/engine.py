"""The Kubernetes engine: makes an attempt's objects, reads its pods from watches, and removes what is over.

Everything it knows is in the cluster and in the node book. What it keeps in memory are copies and conveniences: a new
engine lists, and goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from windlass.core.errors import InvalidInput, LaunchFailed, Unavailable
from windlass.core.exits import ExitReason
from windlass.core.resources import Node
from windlass.engines.contract import (
    EngineContext,
    Launch,
    NodeReport,
    Observation,
    Phase,
    StopKind,
)
from windlass.engines.kubernetes import names
from windlass.engines.kubernetes.api import ClusterApi
from windlass.engines.kubernetes.lives import Patience, decide_life, decide_life_unseen
from windlass.engines.kubernetes.manifests import Site
from windlass.engines.kubernetes.nodes import NodeState, decide_inventory, parse_foreign_pod, parse_node
from windlass.engines.kubernetes.objects import AttemptObjects
from windlass.engines.kubernetes.options import decide_options
from windlass.engines.kubernetes.pods import PodState, parse_pod
from windlass.engines.kubernetes.tpus import decide_tpu_options
from windlass.engines.kubernetes.watching import Watched
from windlass.engines.remote.bootstrap import render_bootstrap
from windlass.engines.remote.observing import Life, NodeLife, decide_observation
from windlass.engines.remote.plans import render_remote_plans
from windlass.wire.kubernetes import KubernetesConfig, Mode

_FIRST_LOOK_S = 5.0
_REQUESTS_AT_ONCE = 8
_REMEMBERED_RELEASES = 10_000
# After its grace a node has this long to say that it has ended, before its pod is removed under it.
_LAST_WORDS_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """The cluster as the watches know it."""

    pods: Mapping[tuple[str, int], PodState]
    deleted: Mapping[tuple[str, int], PodState]
    machines: Mapping[str, NodeState]
    problem: str | None  # why it may be out of date


class KubernetesEngine:
    type = "kubernetes"
    launches_at_once = 8

    def __init__(self, api: ClusterApi, config: KubernetesConfig, context: EngineContext) -> None:
        server_url = config.server_url or context.server_url
        if server_url is None:
            raise InvalidInput(
                f"engine '{context.name}': where pods reach this server is not known",
                hint="set `server_url` of the engine, or `server.url`",
            )
        self.name = context.name
        self._config = config
        self._clock = context.clock
        self._book = context.nodes
        self._patience = Patience(schedule_s=config.schedule_patience, image_s=config.image_patience)
        site = Site(engine=context.name, config=config, server_url=server_url, bootstrap=render_bootstrap())
        self._threads = ThreadPoolExecutor(_REQUESTS_AT_ONCE, thread_name_prefix=f"kubernetes-{context.name}")
        self._objects = AttemptObjects(api, site, self._threads)
        ours = f"{names.ENGINE}={names.label_value(context.name)}"
        pods = f"/api/v1/namespaces/{config.namespace}/pods"
        self._pods = Watched(api, pods, parse_pod, query={"labelSelector": ours}, changed=context.notify)
        self._machines = Watched(api, "/api/v1/nodes", parse_node, changed=context.notify)
        self._foreign = Watched(
            api,
            "/api/v1/pods",
            parse_foreign_pod,
            query={
                "labelSelector": ours.replace("=", "!="),
                "fieldSelector": "status.phase!=Succeeded,status.phase!=Failed",
            },
        )
        self.watched = (self._pods, self._machines, self._foreign)
        for watched in self.watched:
            watched.start()
        # Conveniences: lost with the process, they cost a repeated request or a later end by force.
        self._overdue_at: dict[str, float] = {}
        self._killed: dict[str, StopKind] = {}
        self._stops: dict[str, StopKind] = {}
        self._made: set[str] = set()
        self._released: dict[str, None] = {}  # the oldest first

    # ---- the contract ------------------------------------------------------------------------------------------

    def inventory(self) -> Sequence[Node]:
        for watched in (self._machines, self._foreign):
            if not watched.wait_listed(_FIRST_LOOK_S) or not watched.is_current:
                raise Unavailable(f"the nodes of engine '{self.name}' cannot be told: {watched.problem}")
        config = self._config
        return decide_inventory(
            self._machines.snapshot().values(),
            self._foreign.snapshot().values(),
            engine=self.name,
            selector=config.node_selector,
            tolerated=[toleration.key for toleration in config.defaults.tolerations if toleration.key],
            gpu_resource=config.gpu_resource,
            gpu_type_label=config.gpu_type_label,
            tpu_resource=config.tpu_resource,
            tpu_type_label=config.tpu_type_label,
            topology_labels=config.topology_labels,
            prices=config.node_prices,
        )

    def launch(self, launch: Launch) -> None:
        reports = self._book.load([launch.attempt_id]).get(launch.attempt_id)
        if reports is not None and any(report.outcome is not None for report in reports):
            return  # over, or about to be
        targets = {share.node for share in launch.placement.shares}
        machines = [machine for machine in self._machines.snapshot().values() if machine.name in targets]
        options = decide_tpu_options(decide_options(self._config, launch.options), self._config, machines)
        if launch.image is None and self._config.image is None:
            raise LaunchFailed(
                f"the run names no container image, and engine '{self.name}' has none for such runs",
                hint="add `image:` to the spec, or to the engine in the server's config",
            )
        # A node that has been heard of has had its pod; another one under its name would be another process.
        heard = {report.node_rank for report in reports or () if report.reported_at is not None}
        ranks = [rank for rank in range(len(launch.placement.shares)) if rank not in heard]
        plans = render_remote_plans(launch)
        book = partial(self._book.prepare, launch.attempt_id, plans, launch.secrets)
        if not ranks:
            book()
            return
        tokens = [self._book.token(launch.attempt_id, rank) for rank in range(len(launch.placement.shares))]
        for pod in self._objects.make(launch, options, ranks, tokens, book=book):
            self._pods.put(pod)
        self._made.add(launch.attempt_id)

    def poll(self, attempt_ids: Sequence[str]) -> Mapping[str, Observation]:
        # The cluster is looked at before the reports: a node tells its end before its pod ends, never after.
        view = self._look()
        reports = self._book.load(attempt_ids)
        now = self._clock.now()
        return {
            attempt_id: self._observe(attempt_id, reports[attempt_id], view, now)
            if attempt_id in reports and attempt_id not in self._released
            else Observation(phase=Phase.ABSENT)
            for attempt_id in attempt_ids
        }

    def stop(self, attempt_id: str, *, grace_s: float, kind: StopKind = StopKind.CANCELLED) -> None:
        reports = self._book.load([attempt_id]).get(attempt_id)
        if reports is None or all(report.outcome is not None for report in reports):
            return
        self._ask_to_stop(attempt_id, grace_s=grace_s, kind=kind, reason=kind.on_request)

    def release(self, attempt_id: str) -> None:
        reports = self._book.load([attempt_id]).get(attempt_id, ())
        has_ended = bool(reports) and all(report.outcome is not None for report in reports)
        self._book.close(attempt_id)
        machines = {machine.name: machine.ready for machine in self._machines.snapshot().values()}
        pods = [pod for pod in self._pods.snapshot().values() if pod.attempt_id == attempt_id]
        if has_ended or not all(machines.get(pod.node or "", True) for pod in pods):
            # Its nodes have told their ends, or nobody is there to confirm one. A pod that is deleted in good order
            # while its last process is leaving holds its resources until the kubelet comes round to it.
            self._objects.remove(attempt_id, grace_s=0)
        else:
            self._objects.remove(attempt_id)
        for kept in (self._overdue_at, self._killed, self._stops):
            kept.pop(attempt_id, None)
        self._made.discard(attempt_id)
        self._released[attempt_id] = None
        if len(self._released) > _REMEMBERED_RELEASES:
            del self._released[next(iter(self._released))]

    def close(self) -> None:
        for watched in self.watched:
            watched.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # ---- looking -----------------------------------------------------------------------------------------------

    def _look(self) -> _View:
        watches = (self._pods, self._machines)
        problem = next((watched.problem for watched in watches if not watched.is_current), None)
        return _View(
            pods={(pod.attempt_id, pod.node_rank): pod for pod in self._pods.snapshot().values()},
            deleted={(pod.attempt_id, pod.node_rank): pod for pod in self._pods.deleted().values()},
            machines={machine.name: machine for machine in self._machines.snapshot().values()},
            problem=problem,
        )

    def _observe(self, attempt_id: str, reports: Sequence[NodeReport], view: _View, now: float) -> Observation:
        failing = any(report.outcome is not None for report in reports)
        if (
            view.problem is None
            and not failing
            and any(self._is_unmade(report, attempt_id, view) for report in reports)
        ):
            return Observation(phase=Phase.ABSENT)
        lives = [self._life(report, attempt_id, view, now) for report in reports]
        verdict = decide_observation(attempt_id, reports, lives, now=now)
        seen = verdict.observation
        if seen.phase is Phase.ENDED:
            return seen
        if (rest := verdict.stop_rest) is not None and attempt_id not in self._stops:
            graces = [pod.grace_s for (id, _), pod in view.pods.items() if id == attempt_id]
            self._ask_to_stop(attempt_id, grace_s=max(graces, default=0.0), kind=rest.kind, reason=rest.reason)
        if view.problem is None and now > self._overdue_at.get(attempt_id, now):
            self._objects.kill(attempt_id)
            self._killed[attempt_id] = self._stops[attempt_id]
        return seen

    def _is_unmade(self, report: NodeReport, attempt_id: str, view: _View) -> bool:
        """Whether the node has no pod and never had one, as far as anybody can tell; or one that waits for its secret,
        since whoever was about to make that is gone."""
        key = (attempt_id, report.node_rank)
        if report.reported_at is not None or key in view.deleted:
            return False
        if (pod := view.pods.get(key)) is not None:
            return pod.lacks_something and attempt_id not in self._made
        # A Job makes its pods when it is let: having made the Job is all that can be done.
        return self._config.mode is Mode.PODS or attempt_id not in self._made

    def _life(self, report: NodeReport, attempt_id: str, view: _View, now: float) -> NodeLife:
        if report.outcome is not None:
            return NodeLife(life=Life.ALIVE)  # nobody looks at it
        if view.problem is not None:
            return decide_life_unseen(report, view.problem, now=now)
        key = (attempt_id, report.node_rank)
        pod, last_seen = view.pods.get(key), view.deleted.get(key)
        if pod is None and attempt_id in self._killed:
            reason = ExitReason(self._killed[attempt_id])
            return NodeLife(life=Life.GONE, at=now, reason=reason, message="ended by force after its grace")
        if pod is None and last_seen is None and report.reported_at is None:
            return NodeLife(life=Life.WAITING, message="its pod has not been created yet")
        known = pod or last_seen
        where = (known.node or known.target) if known else None
        machine = view.machines.get(where) if where else None
        return decide_life(report, pod, last_seen, machine, self._patience, now=now)

    def _ask_to_stop(self, attempt_id: str, *, grace_s: float, kind: StopKind, reason: str) -> None:
        self._book.wish_to_stop(attempt_id, grace_s=grace_s, kind=kind, reason=reason)
        self._stops.setdefault(attempt_id, kind)
        overdue_at = self._clock.now() + grace_s + _LAST_WORDS_S
        self._overdue_at[attempt_id] = min(overdue_at, self._overdue_at.get(attempt_id, overdue_at))
