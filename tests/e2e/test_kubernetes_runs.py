"""Runs on Kubernetes through the whole server: config file, controller, API, pods, and back."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.integration.away import await_that
from tests.integration.kubernetes_runs import render_config
from windlass.agent.ports import free_port
from windlass.testing.kubernetes import NAMESPACE, KubernetesCluster
from windlass.testing.servers import ServerProcess, running_server, start_server

pytestmark = pytest.mark.kubernetes

PATH = f"{Path(sys.executable).parent}:/usr/bin:/bin"
HOLLOW_NODES, MANY_RUNS = 120, 200


class Server:
    """A server with a Kubernetes engine and no other."""

    def __init__(self, home: Path, cluster: KubernetesCluster, **engine: Any) -> None:
        self.port = free_port()
        config = {
            "server": {"url": f"http://127.0.0.1:{self.port}"},
            "engines": {"k8s": render_config(cluster, **engine).model_dump(mode="json", exclude_unset=True)},
        }
        home.mkdir()
        (home / "config.yaml").write_text(yaml.safe_dump(config))
        self.home = home
        self.cluster = cluster
        self.arguments = ["--port", str(self.port)]

    def submit(self, client: httpx.Client, **spec: Any) -> str:
        body = {"spec": {"code": None, **spec}, "origin": {"search_path": PATH}}
        response = client.post("/api/runs", json=body)
        assert response.status_code == 201, response.text
        run_id: str = response.json()["id"]
        return run_id

    def wait(self, client: httpx.Client, run_id: str, *states: str, timeout_s: float = 90.0) -> dict[str, Any]:
        def view() -> dict[str, Any]:
            found: dict[str, Any] = client.get(f"/api/runs/{run_id}").json()
            return found

        await_that(lambda: view()["state"] in states, lambda: str(view()), timeout_s=timeout_s)
        return view()

    def attempts(self, client: httpx.Client, run_id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = client.get(f"/api/runs/{run_id}/attempts").json()["attempts"]
        return found


@contextlib.contextmanager
def served(server: Server) -> Iterator[tuple[ServerProcess, httpx.Client]]:
    try:
        with running_server(server.home, arguments=server.arguments) as process, process.client() as client:
            yield process, client
    finally:
        server.cluster.clear()


def test_a_run_is_tried_again_elsewhere_when_its_machine_dies(
    tmp_path: Path, kubernetes_cluster: KubernetesCluster
) -> None:
    cluster = kubernetes_cluster
    labels = {"pool": "doomed"}
    machines = {name: cluster.add_node(name, labels=labels) for name in ("d1", "d2")}
    server = Server(tmp_path / "home", cluster, node_selector=labels)
    try:
        with served(server) as (_, client):
            # The second attempt finds the mark that the first one left and ends well.
            mark = tmp_path / "mark"
            command = f"echo attempt $WINDLASS_ATTEMPT; if [ -e {mark} ]; then exit 0; fi; touch {mark}; exec sleep 600"
            run_id = server.submit(client, command=command, retry={"max": 2, "backoff": 0.1}, env={"PATH": PATH})
            await_that(mark.exists, lambda: client.get(f"/api/runs/{run_id}").text)
            server.wait(client, run_id, "running")
            attempts = server.attempts(client, run_id)
            first = attempts[0]["nodes"][0]
            machines[first].kill()
            run = server.wait(client, run_id, "succeeded", "failed")
            assert run["state"] == "succeeded", run
            attempts = server.attempts(client, run_id)
            assert [attempt["exit"]["reason"] for attempt in attempts] == ["lost", "completed"], attempts
            assert first in attempts[0]["exit"]["message"]
            assert attempts[1]["nodes"] != [first]
            log = client.get(f"/api/runs/{run_id}/logs").text
            assert "attempt 1" in log
            assert "attempt 2" in log
    finally:
        for machine in machines.values():
            cluster.remove_node(machine)


def test_an_evicted_run_goes_on_by_itself(tmp_path: Path, kubernetes_cluster: KubernetesCluster) -> None:
    server = Server(tmp_path / "home", kubernetes_cluster)
    with served(server) as (_, client):
        mark = tmp_path / "mark"
        command = f"if [ -e {mark} ]; then exit 0; fi; touch {mark}; exec sleep 600"
        run_id = server.submit(client, command=command, env={"PATH": PATH}, grace="2s")
        server.wait(client, run_id, "running")
        await_that(mark.exists)
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        name = kubernetes_cluster.admin.get(pods)["items"][0]["metadata"]["name"]
        metadata = {"name": name, "namespace": NAMESPACE}
        eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": metadata}
        kubernetes_cluster.admin.create(f"{pods}/{name}/eviction", eviction)
        run = server.wait(client, run_id, "succeeded", "failed")
        attempts = server.attempts(client, run_id)
        assert [attempt["exit"]["reason"] for attempt in attempts] == ["preempted", "completed"], run


def test_a_server_that_is_killed_finds_its_runs_again(tmp_path: Path, kubernetes_cluster: KubernetesCluster) -> None:
    server = Server(tmp_path / "home", kubernetes_cluster)
    with served(server) as (process, client):
        stop = tmp_path / "stop"
        command = f"echo started; while [ ! -e {stop} ]; do sleep 0.1; done; echo done"
        run_id = server.submit(client, command=command, env={"PATH": PATH})
        server.wait(client, run_id, "running")
        process.kill()
        stop.touch()
        again = start_server(server.home, arguments=server.arguments)
        try:
            with again.client() as other:
                run = server.wait(other, run_id, "succeeded", "failed")
                assert run["state"] == "succeeded", run
                assert len(server.attempts(other, run_id)) == 1
                log = other.get(f"/api/runs/{run_id}/logs").text
                assert log.count("started") == 1
                assert "done" in log
        finally:
            again.kill()


@pytest.mark.timeout(240)
def test_hundreds_of_runs_on_more_than_a_hundred_machines(
    tmp_path: Path, kubernetes_cluster: KubernetesCluster
) -> None:
    labels = {"pool": "hollow"}
    machines = kubernetes_cluster.add_node("hollow", count=HOLLOW_NODES, cpus=2, hollow=True, labels=labels)
    server = Server(tmp_path / "home", kubernetes_cluster, node_selector=labels)
    try:
        with served(server) as (_, client):
            assert len(client.get("/api/cluster").json()["nodes"]) == HOLLOW_NODES
            ids = [server.submit(client, command="true", resources={"cpus": 1}) for _ in range(MANY_RUNS)]
            assert len(set(ids)) == MANY_RUNS

            def left() -> int:
                cluster = client.get("/api/cluster").json()
                return int(cluster["queued"] + cluster["running"])

            await_that(lambda: left() == 0, lambda: f"{left()} of {MANY_RUNS} are not over", timeout_s=150)
            states = [client.get(f"/api/runs/{run_id}").json()["state"] for run_id in ids]
            assert set(states) == {"succeeded"}
            pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
            await_that(lambda: not kubernetes_cluster.admin.get(pods)["items"])
    finally:
        kubernetes_cluster.remove_node(machines)
