"""A real Ray with a node that says to have TPUs: runs that ask for some go there, and nobody else gets those."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.ray_runs import RayRuns
from windlass.core.exits import ExitReason
from windlass.core.resources import Node
from windlass.testing.ray import RayCluster

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.fixture
def runs(ray_cluster: RayCluster, tmp_path: Path) -> Iterator[RayRuns]:
    runs = RayRuns(tmp_path, ray_cluster)
    name = ray_cluster.start_node(9, resources={"TPU": 4, "accelerator_type:TPU-V5E": 1})
    try:
        runs.await_that(lambda: _offer(runs, name) is not None, f"{name} to join")
        yield runs
    finally:
        runs.clean_up()
        ray_cluster.kill_node(name)


def test_a_run_has_the_tpus_of_its_node(runs: RayRuns) -> None:
    offered = _offer(runs, "n9")
    assert offered is not None
    assert (offered.gpus, offered.gpu_type) == (4, "tpu:v5e")
    show = ("/bin/sh", "-c", 'echo "chips $TPU_VISIBLE_CHIPS gpus ${CUDA_VISIBLE_DEVICES:-none}"')
    attempt_id = runs.start(*show, nodes=["n9"], gpus=2, tpus=True)
    ended = runs.wait(attempt_id)
    assert ended.exit is not None
    assert ended.exit.reason is ExitReason.COMPLETED
    [said] = runs.log(attempt_id)
    chips = said.split()[1].split(",")
    assert said == f"chips {','.join(chips)} gpus none"
    assert len(set(chips)) == 2


def _offer(runs: RayRuns, name: str) -> Node | None:
    return next((node for node in runs.engine.inventory() if node.name == name), None)
