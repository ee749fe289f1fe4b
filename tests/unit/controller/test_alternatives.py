"""What a spec says would do as well, from the submission to what an engine is told to start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.controller.stage import Stage
from windlass.core.resources import Node
from windlass.db.database import Database
from windlass.engines.contract import Launch
from windlass.runs.sealing import Seal
from windlass.runs.service import RunService
from windlass.testing.clock import FakeClock
from windlass.testing.fake_engine import FakeCluster

H100 = Node(engine="fake", name="h", cpus=32, memory_bytes=10**9, gpus=4, gpu_type="h100", labels=frozenset({"zone=a"}))
A100 = replace(H100, name="a", gpu_type="a100", labels=frozenset({"zone=b"}), spot=True)


@pytest.fixture
def stage(database: Database, service: RunService, seal: Seal, clock: FakeClock) -> Stage:
    stage = Stage(database, service, seal, clock, cluster=FakeCluster(nodes=(H100, A100)))
    stage.controller.tick()  # nodes are known from now on
    return stage


def launches(stage: Stage, *run_ids: str) -> list[Launch]:
    for _ in range(2):
        stage.pass_time()
    return [stage.cluster.attempts[f"{run_id}.1"].launch for run_id in run_ids]


def nodes_of(found: list[Launch]) -> list[list[str]]:
    return [[share.node for share in launch.placement.shares] for launch in found]


def test_the_second_type_is_taken_where_the_first_is_in_use(stage: Stage) -> None:
    wanted = {"gpus": 4, "gpu_type": ["h100", "a100"]}
    ids = [stage.submit(resources=wanted) for _ in range(2)]
    assert nodes_of(launches(stage, *ids)) == [["h"], ["a"]]


def test_of_a_range_it_gets_what_is_free_and_has_a_process_for_each(stage: Stage) -> None:
    first = stage.submit(resources={"gpus": 3, "gpu_type": "h100"})
    launches(stage, first)
    second = stage.submit("python train.py", resources={"gpus": "1..4", "gpu_type": "h100"})
    [found] = launches(stage, second)
    assert (len(found.placement.shares[0].gpu_indices), found.workers_per_node) == (1, 1)
    third = stage.submit("python train.py", resources={"gpus": "2..8", "gpu_type": "a100"})
    [found] = launches(stage, third)
    assert (len(found.placement.shares[0].gpu_indices), found.workers_per_node) == (4, 4)


def test_parts_of_gpus_share_one(stage: Stage) -> None:
    ids = [stage.submit(resources={"gpus": 0.5, "gpu_type": "h100"}) for _ in range(3)]
    shares = [launch.placement.shares[0] for launch in launches(stage, *ids)]
    assert [share.gpu_part for share in shares] == [0.5] * 3
    assert shares[0].gpu_indices == shares[1].gpu_indices != shares[2].gpu_indices
    assert stage.service.view(ids[0]).spec.resources.gpus == 0.5


def test_labels_and_spot_say_which_nodes(stage: Stage) -> None:
    there = stage.submit(resources={"labels": {"zone": "b"}})
    lasting = [stage.submit(resources={"gpus": 2, "spot": False}) for _ in range(2)]
    assert nodes_of(launches(stage, there, *lasting)) == [["a"], ["h"], ["h"]]
