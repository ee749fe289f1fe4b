"""The Kubernetes engine, held to the contract on a real control plane."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.engine_contract import EngineContract
from tests.integration.away import await_that
from tests.integration.kubernetes_runs import KubernetesRuns, kubernetes_runs
from windlass.core.exits import ExitReason
from windlass.core.resources import Node, Resources
from windlass.db.database import sqlite_url
from windlass.engines.contract import Engine, Phase
from windlass.engines.kubernetes import KubernetesEngine
from windlass.engines.kubernetes.names import attempt_name
from windlass.scheduling.core.decide import decide
from windlass.scheduling.core.types import NodeState, Policy, Snapshot, Waiting
from windlass.scheduling.wants import wants_of
from windlass.testing.kubernetes import KubernetesCluster, StandInNode

pytestmark = pytest.mark.kubernetes


class TestKubernetesEngine(EngineContract):
    @pytest.fixture
    def engine(
        self, tmp_path: Path, sqlite_template: Path, kubernetes_cluster: KubernetesCluster
    ) -> Iterator[KubernetesEngine]:
        path = tmp_path / "windlass.db"
        shutil.copy(sqlite_template, path)
        with kubernetes_runs(tmp_path, sqlite_url(path), kubernetes_cluster) as runs:
            self.runs: KubernetesRuns = runs
            yield runs.engine

    def successor(self, engine: Engine) -> Engine:  # noqa: ARG002
        return self.runs.open_engine()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        await_that(condition)

    def exits_with(self, code: int) -> tuple[str, ...]:
        return ("/bin/sh", "-c", f"echo started; exit {code}")

    def goes_on(self) -> tuple[str, ...]:
        return ("/bin/sh", "-c", "echo started; exec sleep 600")

    def ignores_signals(self) -> tuple[str, ...]:
        return ("/bin/sh", "-c", "trap '' TERM; echo started; while :; do sleep 1; done")

    def times_started(self, engine: Engine, attempt_id: str) -> int:  # noqa: ARG002
        return self.runs.away.texts(attempt_id).count("started")


def test_runs_go_to_the_tpus_of_a_slice(
    tmp_path: Path, sqlite_template: Path, kubernetes_cluster: KubernetesCluster
) -> None:
    """As GKE marks such nodes: the real scheduler and the real API server have to agree with what the pods say."""
    path = tmp_path / "windlass.db"
    shutil.copy(sqlite_template, path)
    hosts = [_add_tpu_host(kubernetes_cluster, name) for name in ("t1", "t2")]
    try:
        with kubernetes_runs(tmp_path, sqlite_url(path), kubernetes_cluster) as runs:
            offered = {node.name: node for node in runs.engine.inventory()}
            assert {(offered[name].gpus, offered[name].gpu_type) for name in ("t1", "t2")} == {(4, "tpu:v5e")}
            assert {offered[name].topology for name in ("t1", "t2")} == {("eu-1a", "slice-7")}
            assert offered["n1"].gpus == 0

            wanted = wants_of(Resources(nodes=2, cpus=0.5, gpus=4, gpu_type="tpu:v5e"), engines=None)
            nodes = tuple(_state(node) for node in offered.values())
            waiting = (Waiting(run_id="r", project="p", wants=wanted),)
            [start] = decide(Snapshot(nodes=nodes, waiting=waiting), Policy(), 0.0).starts
            assert sorted(share.node for share in start.placement.shares) == ["t1", "t2"]

            said = ("/bin/sh", "-c", "echo worker $TPU_WORKER_ID of $TPU_WORKER_HOSTNAMES")
            attempt_id = runs.launch(*said, shares=start.placement.shares, tpus=True)
            pods = {pod["metadata"]["name"]: pod["spec"] for pod in runs.pods()}
            assert len(pods) == 2
            for spec in pods.values():
                assert spec["containers"][0]["resources"]["limits"]["google.com/tpu"] == "4"
                assert spec["nodeSelector"]["cloud.google.com/gke-tpu-accelerator"] == "tpu-v5-lite-podslice"
            ended = runs.wait_until(attempt_id, Phase.ENDED)
            assert ended.exit is not None
            assert ended.exit.reason is ExitReason.COMPLETED, runs.describe(attempt_id)
            hosts_said = ",".join(f"{name}.{attempt_name(attempt_id)}" for name in sorted(pods))
            said_by_ranks = sorted(runs.away.texts(attempt_id, nodes=2))
            assert said_by_ranks == [f"worker {rank} of {hosts_said}" for rank in range(2)]
    finally:
        for host in hosts:
            kubernetes_cluster.remove_node(host)


def _add_tpu_host(cluster: KubernetesCluster, name: str) -> StandInNode:
    labels = {
        "topology.kubernetes.io/zone": "eu-1a",
        "cloud.google.com/gke-nodepool": "slice-7",
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x4",
    }
    host = cluster.add_node(name, labels=labels)
    amounts = {"google.com/tpu": "4"}
    cluster.admin.patch(f"/api/v1/nodes/{name}/status", {"status": {"capacity": amounts, "allocatable": amounts}})
    taint = {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}
    cluster.admin.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": [taint]}})
    return host


def _state(node: Node) -> NodeState:
    return NodeState(**{field: getattr(node, field) for field in Node.__slots__})
