"""The Ray engine on a real cluster: gangs, deaths, outages, accounts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from tests.integration.away import is_gone
from tests.integration.ray_runs import RayRuns, nodes_of
from windlass.agent.remedy import NODE
from windlass.core.exits import ExitReason
from windlass.engines.contract import Phase, StopKind
from windlass.testing.ray import RayCluster

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

SLEEP = ("/bin/sh", "-c", "echo started; exec sleep 600")


@pytest.fixture(scope="module")
def shared_runs(ray_cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayRuns]:
    runs = RayRuns(tmp_path_factory.mktemp("ray"), ray_cluster)
    yield runs
    runs.clean_up()


@pytest.fixture
def runs(shared_runs: RayRuns) -> Iterator[RayRuns]:
    """All nodes are there and nothing of other tests is left on them."""
    shared_runs.await_that(lambda: _free(shared_runs) == {"n1": (4.0, 2), "n2": (4.0, 0)}, "n1 and n2")
    yield shared_runs
    shared_runs.release_all()


def test_a_gang_runs_on_the_nodes_it_was_given(runs: RayRuns) -> None:
    report = "echo $NODE_RANK of $GROUP_WORLD_SIZE, rank $RANK of $WORLD_SIZE; while [ ! -e stop ]; do sleep 0.05; done"
    attempt = runs.start("/bin/sh", "-c", report, nodes=["n2", "n1"], workers=2)
    runs.wait(attempt, Phase.RUNNING)
    assert runs.actor_nodes(attempt) == ["n2", "n1"]
    for node_rank in range(2):
        runs.tell_to_end(attempt, node_rank)
    seen = runs.wait(attempt)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.COMPLETED, seen.exit
    assert sorted(runs.log(attempt, nodes=2)) == [f"{rank // 2} of 2, rank {rank} of 4" for rank in range(4)]


@pytest.mark.torch
def test_ranks_of_two_nodes_meet_over_gloo(runs: RayRuns) -> None:
    program = textwrap.dedent("""\
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        total = torch.tensor([1.0 + dist.get_rank()])
        dist.all_reduce(total)
        print("sum", total.item())
        dist.destroy_process_group()  # a gloo thread that is still running at exit aborts the process now and then
    """)
    attempt = runs.start("python", "-c", program, nodes=["n1", "n2"])
    assert runs.wait(attempt).exit.reason is ExitReason.COMPLETED  # type: ignore[union-attr]
    assert runs.log(attempt, nodes=2) == ["sum 3.0", "sum 3.0"]


def test_a_killed_raylet_loses_the_attempt_and_leaves_no_rank(runs: RayRuns, ray_cluster: RayCluster) -> None:
    attempt = runs.start(*SLEEP, nodes=["n1", "n2"])
    runs.wait(attempt, Phase.RUNNING)
    ranks = [*runs.ranks(attempt, 0), *runs.ranks(attempt, 1)]
    assert len(ranks) == 2
    ray_cluster.kill_raylet("n2")
    try:
        runs.await_that(lambda: is_gone(ranks[1]), "the rank of the dead node to end", timeout_s=5.0)
        seen = runs.wait(attempt)
    finally:
        ray_cluster.start_node(2, cpus=4)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.LOST
    assert "node n2 is gone" in seen.exit.message
    assert (seen.exit.trouble, seen.exit.node_rank) == (NODE, 1)
    assert all(is_gone(pid) for pid in ranks)


def test_a_killed_actor_loses_the_attempt(runs: RayRuns) -> None:
    attempt = runs.start(*SLEEP, nodes=["n1"])
    runs.wait(attempt, Phase.RUNNING)
    (rank,) = runs.ranks(attempt, 0)
    os.kill(runs.carrier(rank), signal.SIGKILL)
    seen = runs.wait(attempt)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.LOST
    assert "its actor on node n1 ended" in seen.exit.message
    assert (seen.exit.trouble, seen.exit.node_rank) == (None, 0)
    assert is_gone(rank)


def test_server_and_engine_can_be_restarted_under_it(runs: RayRuns) -> None:
    waiting = "echo started; while [ ! -e stop ]; do sleep 0.05; done; echo ended; exit 3"
    attempt = runs.start("/bin/sh", "-c", waiting, nodes=["n1"])
    runs.wait(attempt, Phase.RUNNING)
    (rank,) = runs.ranks(attempt, 0)
    runs.server.kill()
    runs.reopen()
    assert runs.wait(attempt, Phase.RUNNING).exit is None
    runs.tell_to_end(attempt)  # while there is nobody to hear of it
    runs.await_that(lambda: is_gone(rank), "the rank to end")
    runs.start_server()
    seen = runs.wait(attempt)
    assert seen.exit is not None
    assert (seen.exit.reason, seen.exit.exit_code) == (ExitReason.EXIT_CODE, 3)
    assert runs.log(attempt) == ["started", "ended"]


def test_a_killed_driver_is_replaced(runs: RayRuns) -> None:
    attempt = runs.start(*SLEEP, nodes=["n1"])
    runs.wait(attempt, Phase.RUNNING)
    driver = runs.driver()
    os.kill(driver, signal.SIGKILL)
    runs.await_that(lambda: runs.driver() not in (0, driver), "another driver")
    runs.engine.stop(attempt, grace_s=5.0, kind=StopKind.PREEMPTED)
    seen = runs.wait(attempt)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.PREEMPTED


def test_gpus_are_those_that_ray_gives(runs: RayRuns) -> None:
    show = ("/bin/sh", "-c", "echo gpu $CUDA_VISIBLE_DEVICES; exec sleep 600")
    first, second = (runs.start(*show, nodes=["n1"], gpus=1) for _ in range(2))
    for attempt in (first, second):
        runs.wait(attempt, Phase.RUNNING)
        runs.await_that(lambda id=attempt: bool(runs.log(id)), "its first line")  # type: ignore[misc]
    assert sorted(runs.log(first) + runs.log(second)) == ["gpu 0", "gpu 1"]
    # What is ours is still offered: the scheduler knows who holds it.
    assert _free(runs)["n1"] == (4.0, 2)


def test_what_others_use_is_not_offered(runs: RayRuns, ray_cluster: RayCluster) -> None:
    hog = textwrap.dedent(f"""\
        import ray, sys
        ray.init("{ray_cluster.address}", log_to_driver=False)
        node = next(node["NodeID"] for node in ray.nodes() if node["NodeName"] == "n1")
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        @ray.remote(num_cpus=3, num_gpus=1, scheduling_strategy=strategy)
        class Hog:
            def there(self): pass
        hog = Hog.remote()
        ray.get(hog.there.remote())
        sys.stdin.read()
    """)
    attempt = runs.start(*SLEEP, nodes=["n1"])
    with subprocess.Popen([sys.executable, "-c", hog], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as other:
        try:
            runs.await_that(lambda: _free(runs)["n1"] == (1.0, 1), "others' load to be seen")
        finally:
            other.kill()
    runs.await_that(lambda: _free(runs)["n1"] == (4.0, 2), "its end to be seen")
    runs.wait(attempt, Phase.RUNNING)


def test_a_drained_node_gives_notice(runs: RayRuns, ray_cluster: RayCluster) -> None:
    attempt = runs.start(*SLEEP, nodes=["n2"])
    runs.wait(attempt, Phase.RUNNING)
    ray_cluster.drain(runs.node_id("n2"), deadline_s=120)
    try:
        runs.await_that(lambda: runs.look(attempt).notice is not None, "a notice")
        seen = runs.look(attempt)
        assert seen.phase is Phase.RUNNING
        assert seen.notice is not None
        assert seen.notice.message == "Ray drains node n2"
        assert seen.notice.deadline is not None
        assert "n2" not in _free(runs)
        runs.engine.stop(attempt, grace_s=5.0, kind=StopKind.PREEMPTED)
        assert runs.wait(attempt).exit.reason is ExitReason.PREEMPTED  # type: ignore[union-attr]
    finally:
        ray_cluster.kill_node("n2")
        ray_cluster.start_node(2, cpus=4)


def test_a_runtime_env_reaches_the_ranks(runs: RayRuns) -> None:
    options = {"runtime_env": {"env_vars": {"OMP_NUM_THREADS": "7", "COLOUR": "blue"}}}
    attempt = runs.start("/bin/sh", "-c", "echo $COLOUR $OMP_NUM_THREADS", nodes=["n1"], options=options)
    assert runs.wait(attempt).exit.reason is ExitReason.COMPLETED  # type: ignore[union-attr]
    assert runs.log(attempt) == ["blue 7"]


def test_ranks_find_nothing_that_ray_means_for_its_workers(runs: RayRuns) -> None:
    attempt = runs.start("/bin/sh", "-c", "env", nodes=["n1"])
    runs.wait(attempt)
    names = {line.partition("=")[0] for line in runs.log(attempt)}
    assert not names & {"OMP_NUM_THREADS", "RAY_JOB_ID", "PYTHONBREAKPOINT", "WINDLASS_NODE_TOKEN"}


def test_what_ray_refuses_is_a_failed_launch(runs: RayRuns) -> None:
    attempt = runs.start(*SLEEP, nodes=["n1"], options={"runtime_env": {"working_dir": "/no/such/folder"}})
    seen = runs.wait(attempt)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.LAUNCH_FAILED
    assert "/no/such/folder" in seen.exit.message


def test_a_node_that_has_left_is_lost(runs: RayRuns) -> None:
    attempt = runs.start(*SLEEP, nodes=["n77"])
    seen = runs.wait(attempt)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.LOST
    assert re.search("node n77 is not part of the Ray cluster", seen.exit.message)


def _free(runs: RayRuns) -> dict[str, tuple[float, int]]:
    return {node.name: (node.cpus, node.gpus) for node in nodes_of(runs.engine) if node.name.startswith("n")}
