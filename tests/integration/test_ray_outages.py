"""The Ray engine when Ray's head is away, through a client, and with a head of its own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.away import is_gone
from tests.integration.ray_runs import RayRuns, nodes_of
from windlass.core.exits import ExitReason
from windlass.engines.contract import Phase
from windlass.testing.ray import RayCluster, RayUnavailable, running_ray

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

OUTAGE_S = 60.0
UNTIL_TOLD = ("/bin/sh", "-c", "echo started; while [ ! -e stop ]; do sleep 0.05; done; echo ended")


@pytest.fixture
def own_cluster() -> Iterator[RayCluster]:
    """For whoever kills its head."""
    try:
        with running_ray() as cluster:
            cluster.start_head(cpus=4)
            cluster.start_node(1, cpus=4)
            yield cluster
    except RayUnavailable as reason:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no Ray: {reason}")


@pytest.mark.slow  # a minute's outage, and as long again until a raylet finds that its head has lost its memory
@pytest.mark.timeout(600)
def test_nothing_is_lost_while_the_head_is_away_for_a_minute(own_cluster: RayCluster, tmp_path: Path) -> None:
    runs = RayRuns(tmp_path, own_cluster)
    try:
        runs.await_that(lambda: any(node.name == "n1" for node in runs.engine.inventory()), "n1")
        short, long = (runs.start(*UNTIL_TOLD, nodes=["n1"]) for _ in range(2))
        for attempt in (short, long):
            runs.wait(attempt, Phase.RUNNING)
        rank = runs.ranks(long, 0)[0]
        raylet, process = own_cluster.raylet("n1"), own_cluster.nodes["n1"]
        own_cluster.kill_node("head")
        back_at = time.monotonic() + OUTAGE_S
        runs.await_that(lambda: runs.look(long).phase is Phase.UNKNOWN, "the outage to be noticed")
        # What ends meanwhile is known: nodes tell the server, not Ray.
        runs.tell_to_end(short)
        assert runs.wait(short).exit.reason is ExitReason.COMPLETED  # type: ignore[union-attr]
        while time.monotonic() < back_at:
            seen = runs.look(long)
            assert (seen.phase, seen.detail) == (Phase.UNKNOWN, "Ray cannot be asked now")
            assert nodes_of(runs.engine) == ()
            assert not is_gone(rank)
            time.sleep(0.2)
        # A raylet gives up after a minute of its own, or when it finds that its head has no memory: now or soon.
        del own_cluster.nodes["n1"]
        own_cluster.start_head(cpus=4)
        phases = runs.phases_until(long, lambda: is_gone(raylet), "the raylet to give up")
        phases |= runs.phases_until(long, lambda: bool(nodes_of(runs.engine)), "Ray to be asked again")
        process.wait(60)
        own_cluster.start_node(1, cpus=4)
        phases |= runs.phases_until(
            long, lambda: any(node.name == "n1" for node in nodes_of(runs.engine)), "n1 to be back"
        )
        assert phases <= {Phase.UNKNOWN, Phase.RUNNING}  # absent would have it launched anew, ended would be a loss
        assert runs.wait(long, Phase.RUNNING).exit is None
        assert not is_gone(rank)
        runs.tell_to_end(long)
        assert runs.wait(long).exit.reason is ExitReason.COMPLETED  # type: ignore[union-attr]
        assert runs.log(long) == ["started", "ended"]
    finally:
        runs.clean_up()


def test_a_cluster_elsewhere_is_reached_through_a_client(ray_cluster: RayCluster, tmp_path: Path) -> None:
    runs = RayRuns(tmp_path, ray_cluster, address=ray_cluster.client_address)
    try:
        runs.await_that(lambda: any(node.name == "n1" for node in runs.engine.inventory()), "n1")
        attempt = runs.start("/bin/sh", "-c", "echo gpu $CUDA_VISIBLE_DEVICES", nodes=["n1"], gpus=1)
        assert runs.wait(attempt).exit.reason is ExitReason.COMPLETED  # type: ignore[union-attr]
        assert runs.log(attempt)[0].startswith("gpu ")
    finally:
        runs.clean_up()


def test_a_head_of_our_own_outlives_the_engine(ray_cluster: RayCluster, tmp_path: Path) -> None:
    runs = RayRuns(tmp_path, ray_cluster, address="local", cpus=3)
    try:
        assert [node.cpus for node in runs.engine.inventory()] == [3.0]
        attempt = runs.start(*UNTIL_TOLD)
        runs.wait(attempt, Phase.RUNNING)
        began = time.time()
        runs.reopen()
        assert runs.wait(attempt, Phase.RUNNING).started_at < began  # type: ignore[operator]
        runs.tell_to_end(attempt)
        assert runs.wait(attempt).exit.reason is ExitReason.COMPLETED  # type: ignore[union-attr]
    finally:
        runs.clean_up()
        for pid in runs.local_head():
            os.kill(pid, signal.SIGKILL)
