"""Attempts on a real Kubernetes control plane with stand-in nodes: engine, server and the objects they leave."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.integration.away import Away, await_that
from windlass.blobs.code import BlobCode
from windlass.core.clock import SystemClock
from windlass.core.resources import NodeShare, Placement
from windlass.engines.contract import EngineContext, Launch, Observation, Phase
from windlass.engines.kubernetes import KubernetesEngine, open_engine
from windlass.testing.kubernetes import NAMESPACE, KubernetesCluster
from windlass.wire.kubernetes import KubernetesConfig

GRACE_S = 5.0


class KubernetesRuns:
    def __init__(self, folder: Path, database_url: str, cluster: KubernetesCluster) -> None:
        self.cluster = cluster
        self.away = Away(folder, database_url)
        self.engine = self.open_engine()

    def open_engine(self, **changes: Any) -> KubernetesEngine:
        context = EngineContext(
            name="k8s",
            home=self.away.folder / "home",
            clock=SystemClock(),
            notify=lambda: None,
            code=BlobCode(self.away.blobs()),
            nodes=self.away.book,
            server_url=self.away.url,
        )
        return open_engine(render_config(self.cluster, **changes), context)

    def launch(
        self,
        *argv: str,
        nodes: tuple[str, ...] = ("n1",),
        number: int = 1,
        memory_bytes: int = 0,
        workers: int = 1,
        env: Mapping[str, str] | None = None,
        image: str | None = None,
        options: Mapping[str, Any] | None = None,
        engine: KubernetesEngine | None = None,
        shares: tuple[NodeShare, ...] | None = None,
        tpus: bool = False,
    ) -> str:
        if shares is None:
            shares = tuple(NodeShare(node=node, cpus=0.5, memory_bytes=memory_bytes) for node in nodes)
        launch = Launch(
            run_id=self.away.run_id,
            attempt_id=f"{self.away.run_id}.{number}",
            attempt=number,
            placement=Placement(engine="k8s", shares=shares),
            argv=argv,
            workers_per_node=workers,
            self_launching=False,
            env={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **(env or {})},
            grace_s=GRACE_S,
            image=image,
            tpus=tpus,
            options=options or {},
        )
        (engine or self.engine).launch(launch)
        return launch.attempt_id

    def wait_until_given_up(self, attempt_id: str, **patience: float) -> Observation:
        """As an engine with less patience sees it in the end: the usual one has more than any test."""
        impatient = self.open_engine(**patience)
        try:
            await_that(
                lambda: impatient.poll([attempt_id])[attempt_id].phase is Phase.ENDED,
                lambda: self.describe(attempt_id),
            )
            return impatient.poll([attempt_id])[attempt_id]
        finally:
            impatient.close()

    def look(self, attempt_id: str) -> Observation:
        return self.engine.poll([attempt_id])[attempt_id]

    def wait_until(self, attempt_id: str, phase: Phase, *, timeout_s: float = 60.0) -> Observation:
        await_that(lambda: self.look(attempt_id).phase is phase, lambda: self.describe(attempt_id), timeout_s=timeout_s)
        return self.look(attempt_id)

    def pods(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.cluster.admin.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
        return found

    def describe(self, attempt_id: str) -> str:
        pods = [(pod["metadata"]["name"], pod["status"]) for pod in self.pods()]
        logs = [path.read_text(errors="replace")[-1500:] for path in self.cluster.folder.glob("nodes/*/pods/*/log")]
        kubelets = [path.read_text(errors="replace")[-500:] for path in self.cluster.folder.glob("nodes/*/kubelet.log")]
        return f"{self.look(attempt_id)}\n{pods}\n{logs}\n{kubelets}"

    def close(self) -> None:
        self.engine.close()
        self.cluster.clear()
        self.away.close()


def render_config(cluster: KubernetesCluster, **changes: Any) -> KubernetesConfig:
    settings: dict[str, Any] = {
        "type": "kubernetes",
        "kubeconfig": str(cluster.controller_kubeconfig),
        "namespace": NAMESPACE,
        "image": "windlass-test",
        "python": sys.executable,
        "node_loss": 2,
        "image_patience": 120,
        "schedule_patience": 120,
    }
    return KubernetesConfig(**{**settings, **changes})


@contextmanager
def kubernetes_runs(folder: Path, database_url: str, cluster: KubernetesCluster) -> Iterator[KubernetesRuns]:
    runs = KubernetesRuns(folder, database_url, cluster)
    try:
        yield runs
    finally:
        runs.close()
