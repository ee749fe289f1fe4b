from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from windlass.agent import memory
from windlass.core.clock import SystemClock
from windlass.core.errors import LaunchFailed
from windlass.core.resources import NodeShare, Placement
from windlass.engines.contract import Launch
from windlass.engines.local.engine import LocalEngine
from windlass.engines.local.machine import Machine
from windlass.engines.local.plans import render_node_plans

GOLDEN = Path(__file__).with_name("golden")
GPUS = tuple({"index": index, "name": "NVIDIA H100 80GB HBM3", "memory_bytes": 80 << 30} for index in range(4))
LAPTOP = Machine(cpus=8.0, memory_bytes=16 << 30)
SERVER = Machine(cpus=64.0, memory_bytes=1 << 40, gpus=GPUS, nodes=2)

LAUNCHES = {
    "one_node": (
        LAPTOP,
        Launch(
            run_id="r-bcdfghjkmn",
            attempt_id="r-bcdfghjkmn.1",
            attempt=1,
            placement=Placement(engine="local", shares=(NodeShare(node="local", cpus=2.0, memory_bytes=0),)),
            argv=("python", "train.py"),
            workers_per_node=2,
            self_launching=False,
            env={"LANG": "C.UTF-8"},
            host_env={"HOME": "/home/me", "LANG": "of the server", "PYTHONPATH": "of the server"},
            origin_env={"LANG": "of the submitter", "PYTHONPATH": "/home/me/lib"},
            secrets={"TOKEN": "never written"},
            code_digest="ab" * 32,
            search_path="/usr/bin:/bin",
        ),
    ),
    "two_nodes": (
        SERVER,
        Launch(
            run_id="r-bcdfghjkmn",
            attempt_id="r-bcdfghjkmn.3",
            attempt=3,
            placement=Placement(
                engine="local",
                shares=(
                    NodeShare(node="local-0", cpus=8.0, memory_bytes=1 << 30, gpu_indices=(1,)),
                    NodeShare(node="local-1", cpus=8.0, memory_bytes=1 << 30, gpu_indices=(0, 1)),
                ),
            ),
            argv=("torchrun", "train.py"),
            workers_per_node=1,
            self_launching=True,
            env={"PATH": "/opt/bin"},
            workdir="/data/project",
            search_path="/usr/bin:/bin",
            timeout_s=3600.0,
            grace_s=30.0,
        ),
    ),
}


def render(machine: Machine, launch: Launch) -> list[dict[str, object]]:
    return render_node_plans(
        launch,
        home=Path("/home/windlass"),
        blobs_dir=Path("/home/windlass/blobs"),
        machine=machine,
        notify_socket="/home/windlass/engine.sock",
        master_port=29500 if len(launch.placement.shares) > 1 else 0,
    )


@pytest.mark.parametrize("name", LAUNCHES)
def test_plans_are_as_written_down(name: str) -> None:
    wanted = json.loads((GOLDEN / f"{name}.json").read_text())
    assert render(*LAUNCHES[name]) == wanted


def test_secrets_are_in_no_plan() -> None:
    assert "never written" not in json.dumps(render(*LAUNCHES["one_node"]))


def test_only_a_run_that_was_resumed_says_since_when() -> None:
    machine, launch = LAUNCHES["two_nodes"]
    assert [plan["first_attempt"] for plan in render(machine, replace(launch, first_attempt=3))] == [3, 3]


def test_memory_that_runs_have_left_is_given_back_while_nothing_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[int] = []
    monkeypatch.setattr(memory, "sweep", lambda: swept.append(1))
    engine = LocalEngine(tmp_path, tmp_path / "blobs", notify=lambda: None, clock=SystemClock(), preimport=())
    try:
        for _ in range(3):
            engine.inventory()
        assert len(swept) == 1  # not every time
    finally:
        engine.close()


def test_unknown_nodes_and_gpus_are_refused() -> None:
    _, launch = LAUNCHES["two_nodes"]
    with pytest.raises(LaunchFailed, match="unknown node 'local-0'"):
        render(LAPTOP, launch)
    with pytest.raises(LaunchFailed, match="node local-0 has no GPU 1; it has 0"):
        render(Machine(cpus=8.0, memory_bytes=1, nodes=2), launch)


def test_virtual_nodes_divide_the_machine() -> None:
    nodes = SERVER.inventory()
    assert [(node.name, node.cpus, node.memory_bytes, node.gpus, node.gpu_type) for node in nodes] == [
        ("local-0", 32.0, 1 << 39, 2, "h100"),
        ("local-1", 32.0, 1 << 39, 2, "h100"),
    ]
    assert [node.name for node in LAPTOP.inventory()] == ["local"]
