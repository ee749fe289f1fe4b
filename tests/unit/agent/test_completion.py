from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import windlass.agent
from windlass.agent.completion import complete_plan, folders_in
from windlass.agent.environ import rank_environment
from windlass.agent.relay import exit_code
from windlass.core.resources import NodeShare, Placement
from windlass.engines.contract import Launch
from windlass.engines.remote.plans import render_remote_plans

DEVICES = [{"index": index, "name": "H100", "memory_bytes": 80} for index in range(4)]


def welcome(*, gpus: int = 0, inherit_path: bool = False, **options: Any) -> dict[str, Any]:
    share = NodeShare(node="n0", cpus=1.0, memory_bytes=0, gpu_indices=tuple(range(gpus)))
    launch = Launch(
        run_id="r-bcdfghjkmn",
        attempt_id="r-bcdfghjkmn.2",
        attempt=2,
        placement=Placement(engine="ray", shares=(share,)),
        argv=("python", "train.py"),
        workers_per_node=max(1, gpus),
        self_launching=False,
        **{"env": {"LR": "0.1", "PATH": "/plan"}, **options},
    )
    (plan,) = render_remote_plans(launch, inherit_path=inherit_path)
    return {"plan": plan, "master_addr": "10.0.0.9", "master_port": 4711, "node_addrs": ["10.0.0.9"]}


def complete(found: dict[str, Any], **environ: str) -> dict[str, Any]:
    folders = folders_in("/node", found["plan"])
    return complete_plan(found, folders, environ=environ, devices=DEVICES, notify_socket=None)


def test_a_node_adds_where_it_works_and_where_ranks_meet() -> None:
    plan = complete(welcome(code_digest="ab" * 32))
    assert plan["node_dir"] == "/node/runs/r-bcdfghjkmn/attempts/2/node-0"
    assert plan["run_dir"] == "/node/runs/r-bcdfghjkmn"
    assert plan["workdir"] == "/node/runs/r-bcdfghjkmn/work"
    assert plan["code"] == {"manifest": "/node/blobs/ab/" + "ab" * 32, "blobs": "/node/blobs"}
    env = rank_environment(plan, 0)
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.9", "4711")


def test_a_folder_that_the_run_names_is_used_as_it_is() -> None:
    plan = complete(welcome(code_digest="ab" * 32, workdir="/shared/work"))
    assert (plan["workdir"], plan["code"]) == ("/shared/work", None)


def test_ranks_inherit_the_node_s_environment_but_nothing_of_windlass() -> None:
    plan = complete(welcome(), PATH="/node/bin", LANG="C", WINDLASS_NODE_TOKEN="t")
    env = rank_environment(plan, 0)
    assert (env["PATH"], env["LANG"], env["LR"]) == ("/plan", "C", "0.1")
    assert "WINDLASS_NODE_TOKEN" not in env


def test_what_programs_count_on_is_there_on_a_bare_node() -> None:
    env = rank_environment(complete(welcome(env={})), 0)
    assert (env["HOME"], env["LANG"]) == ("/", "C.UTF-8")
    assert "/usr/bin" in env["PATH"]


def test_nothing_of_the_server_or_the_submitter_unless_nodes_are_set_up_alike() -> None:
    given: dict[str, Any] = {
        "env": {"LR": "0.1"},
        "host_env": {"HOME": "/of/the/server", "SSL_CERT_FILE": "/of/the/server.pem"},
        "origin_env": {"VIRTUAL_ENV": "/home/me/venv"},
        "search_path": "/home/me/venv/bin",
    }
    own = {"HOME": "/root", "PATH": "/opt/bin", "SLURM_PROCID": "3"}
    env = rank_environment(complete(welcome(**given), **own), 0)
    assert (env["HOME"], env["PATH"], env["LR"]) == ("/root", "/opt/bin", "0.1")
    assert not {"SSL_CERT_FILE", "VIRTUAL_ENV", "SLURM_PROCID"} & env.keys()
    env = rank_environment(complete(welcome(inherit_path=True, **given), **own), 0)
    assert (env["HOME"], env["PATH"], env["VIRTUAL_ENV"]) == ("/root", "/home/me/venv/bin", "/home/me/venv")


@pytest.mark.parametrize(
    ("gpus", "environ", "indices", "visible"),
    [
        (2, {"CUDA_VISIBLE_DEVICES": "1,3"}, [1, 3], "1,3"),
        (2, {}, [0, 1], None),
        (2, {"CUDA_VISIBLE_DEVICES": "GPU-1a,GPU-2b"}, [], "GPU-1a,GPU-2b"),
        (0, {}, [], ""),
    ],
)
def test_gpus_are_those_that_the_cluster_gave(
    gpus: int, environ: dict[str, str], indices: list[int], visible: str | None
) -> None:
    plan = complete(welcome(gpus=gpus), **environ)
    assert plan["gpu_indices"] == indices
    assert [gpu["index"] for gpu in plan["gpus"]] == indices
    assert rank_environment(plan, 0).get("CUDA_VISIBLE_DEVICES") == visible


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        ({"reason": "completed", "exit_code": 0, "signal": None}, 0),
        ({"reason": "exit_code", "exit_code": 3, "signal": None}, 3),
        ({"reason": "signal", "exit_code": None, "signal": 9}, 137),
        ({"reason": "cancelled", "exit_code": None, "signal": None}, 1),
        ({"reason": "preempted", "exit_code": 0, "signal": None}, 1),
    ],
)
def test_the_exit_code_mirrors_the_outcome(ended: dict[str, Any], code: int) -> None:
    assert exit_code(ended) == code


@pytest.mark.parametrize("path", sorted(Path(windlass.agent.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_the_agent_can_be_read_by_the_oldest_interpreter_it_may_meet(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 9))
