"""A real kubelet and real containers: what a pod of ours may do there, and that the agent needs no more."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.kubernetes_runs import KubernetesRuns
from windlass.core.exits import ExitReason
from windlass.db.database import sqlite_url
from windlass.engines.contract import Phase
from windlass.testing.kubelet.images import HOST
from windlass.testing.kubelet.real import running_real_node
from windlass.testing.kubernetes import HOST_ADDRESS, KubernetesCluster, KubernetesUnavailable

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(240)]

# The image has no Python: the host's comes in, read-only.
PYTHON_OF_THE_HOST = [
    {"name": "usr", "mount": "/usr", "host_path": "/usr", "read_only": True},
    {"name": "lib", "mount": "/lib", "host_path": "/usr/lib", "read_only": True},
    {"name": "lib64", "mount": "/lib64", "host_path": "/usr/lib64", "read_only": True},
]


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path, kubernetes_cluster: KubernetesCluster
) -> Iterator[KubernetesRuns]:
    folder = tmp_path_factory.mktemp("runs")
    shutil.copy(sqlite_template, folder / "windlass.db")
    found = KubernetesRuns(folder, sqlite_url(folder / "windlass.db"), kubernetes_cluster)
    try:
        with running_real_node(kubernetes_cluster, forwarded=[found.away.port]):
            found.engine.close()
            found.engine = found.open_engine(
                server_url=f"http://{HOST_ADDRESS}:{found.away.port}",
                image=HOST,
                python="/usr/bin/python3",
                image_patience=3,
                defaults={"volumes": PYTHON_OF_THE_HOST},
            )
            yield found
            kubernetes_cluster.clear()
    except KubernetesUnavailable as reason:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no real kubelet: {reason}")
    finally:
        found.close()


def run(runs: KubernetesRuns, script: str, *, number: int, memory_bytes: int = 0) -> tuple[ExitReason, list[str]]:
    attempt = runs.launch(
        "/bin/sh",
        "-c",
        script,
        nodes=("real",),
        number=number,
        memory_bytes=memory_bytes,
        env={"PATH": "/usr/bin:/bin"},
    )
    seen = runs.wait_until(attempt, Phase.ENDED, timeout_s=120)
    assert seen.exit is not None
    return seen.exit.reason, runs.away.texts(attempt)


def test_a_container_is_confined_and_the_agent_needs_no_more(runs: KubernetesRuns) -> None:
    script = (
        "id -u; touch /root-is-read-only 2>/dev/null || echo read-only; touch /tmp/x ~/x /dev/shm/x && echo writable\n"
        "grep -E '^(NoNewPrivs|CapEff|Seccomp):' /proc/self/status | tr -s '\\t ' ' '"
    )
    reason, lines = run(runs, script, number=1)
    assert reason is ExitReason.COMPLETED
    assert lines == ["1000", "read-only", "writable", "CapEff: 0000000000000000", "NoNewPrivs: 1", "Seccomp: 2"]


def test_a_rank_over_the_containers_memory_is_out_of_memory(runs: KubernetesRuns) -> None:
    hungry = "python3 -c 'x = bytearray(600 << 20); import time; time.sleep(60)'"
    reason, _ = run(runs, hungry, number=2, memory_bytes=300 << 20)
    assert reason is ExitReason.OOM


def test_an_image_that_is_nowhere_fails_with_the_runtimes_words(runs: KubernetesRuns) -> None:
    attempt = runs.launch("true", nodes=("real",), number=3, image="windlass.test/no-such-image:1")
    seen = runs.wait_until(attempt, Phase.ENDED, timeout_s=60)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.LAUNCH_FAILED
    assert "windlass.test/no-such-image:1" in seen.exit.message
