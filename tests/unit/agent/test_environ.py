from __future__ import annotations

import json
from typing import Any

from windlass.agent.environ import argv_of, global_rank, is_essential, rank_environment, role_of


def plan(**changes: Any) -> dict[str, Any]:
    return {
        "run_id": "r-1",
        "attempt_id": "r-1.2",
        "attempt": 2,
        "node_rank": 1,
        "nnodes": 2,
        "node_name": "b",
        "node_names": ["a", "b"],
        "node_addrs": ["10.0.0.1", "10.0.0.2"],
        "node_gpus": 0,
        "node_dir": "/home/runs/r-1/attempts/2/node-1",
        "run_dir": "/home/runs/r-1",
        "workers_per_node": 4,
        "self_launching": False,
        "env": {},
        "gpu_indices": [],
        "master_addr": "10.0.0.1",
        "master_port": 29500,
        **changes,
    }


def test_the_rank_table() -> None:
    env = rank_environment(plan(), 3)
    assert {name: env[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")} == {
        "RANK": "7",
        "LOCAL_RANK": "3",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "1",
    }
    assert (env["MASTER_ADDR"], env["MASTER_PORT"], env["NODE_RANK"]) == ("10.0.0.1", "29500", "1")
    assert env["WINDLASS_RANK"] == "7"


def test_a_copy_of_a_home_knows_its_own_processes() -> None:
    here, there = (rank_environment(plan(node_dir=path), 0)["WINDLASS_NODE_ID"] for path in ("/a/node-1", "/b/node-1"))
    assert here.startswith("r-1.2/1@")
    assert here != there


def test_a_launcher_of_its_own_gets_what_torchrun_reads_and_no_rank() -> None:
    env = rank_environment(plan(self_launching=True), 0)
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "OMP_NUM_THREADS"} & set(env)
    assert {name: env[f"PET_{name}"] for name in ("NNODES", "NPROC_PER_NODE", "NODE_RANK", "MASTER_PORT")} == {
        "NNODES": "2",
        "NPROC_PER_NODE": "4",
        "NODE_RANK": "1",
        "MASTER_PORT": "29500",
    }
    assert env["WINDLASS_RANK"] == "1"
    assert global_rank(plan(self_launching=True), 0) == 1


def test_frameworks_find_each_other() -> None:
    env = rank_environment(plan(workers_per_node=1), 0)
    assert json.loads(env["TF_CONFIG"]) == {
        "cluster": {"worker": ["10.0.0.1:29501", "10.0.0.2:29502"]},
        "task": {"type": "worker", "index": 1},
    }
    assert env["JAX_COORDINATOR_ADDRESS"] == "10.0.0.1:29500"
    assert (env["JAX_NUM_PROCESSES"], env["JAX_PROCESS_ID"]) == ("2", "1")
    assert not [name for name in env if name.startswith("OMPI_")]


def test_jax_is_told_as_by_a_launcher_it_knows() -> None:
    env = rank_environment(plan(workers_per_node=2, env={"WINDLASS_FRAMEWORK": "jax"}), 1)
    told = {name: env[f"OMPI_COMM_WORLD_{name}"] for name in ("SIZE", "RANK", "LOCAL_RANK")}
    assert told == {"SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"}
    assert env["OMPI_MCA_orte_hnp_uri"].endswith("10.0.0.1:29500")


def test_a_lone_process_has_no_cluster() -> None:
    env = rank_environment(plan(nnodes=1, node_rank=0, workers_per_node=1), 0)
    assert "TF_CONFIG" not in env
    assert "OMP_NUM_THREADS" not in env


def test_gpus_are_shown_hidden_or_left_alone() -> None:
    assert rank_environment(plan(gpu_indices=[2, 5], node_gpus=8), 0)["CUDA_VISIBLE_DEVICES"] == "2,5"
    assert rank_environment(plan(node_gpus=8), 0)["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in rank_environment(plan(), 0)


def test_the_user_wins_over_conveniences_but_not_over_identity() -> None:
    own = {"OMP_NUM_THREADS": "8", "PYTHONUNBUFFERED": "", "SM_HPS": "mine", "RANK": "99", "MASTER_PORT": "1"}
    env = rank_environment(plan(env=own), 0)
    assert (env["OMP_NUM_THREADS"], env["PYTHONUNBUFFERED"], env["SM_HPS"]) == ("8", "", "mine")
    assert (env["RANK"], env["MASTER_PORT"]) == ("4", "29500")


def test_sagemaker_names() -> None:
    env = rank_environment(plan(env={"WINDLASS_PARAMS": '{"lr":0.1}'}, gpu_indices=[0], node_gpus=1), 0)
    assert env["SM_HPS"] == '{"lr":0.1}'
    assert env["SM_MODEL_DIR"] == "/home/runs/r-1/model"
    assert (env["SM_NUM_GPUS"], env["SM_CURRENT_HOST"], json.loads(env["SM_HOSTS"])) == ("1", "b", ["a", "b"])


ROLES = [
    {"name": "chief", "count": 1, "argv": ["c"], "essential": True},
    {"name": "worker", "count": 3, "argv": ["w"], "essential": True},
    {"name": "ps", "count": 2, "argv": ["p"], "essential": False},
    {"name": "evaluator", "count": 1, "argv": ["e"], "essential": True},
    {"name": "logger", "count": 1, "argv": ["l"], "essential": False},
]


def test_ranks_belong_to_roles_in_their_order() -> None:
    gang = plan(roles=ROLES)
    found = [role_of(gang, rank) for rank in range(9)]
    assert [(role.name, role.rank, role.size) for role in found if role] == [
        ("chief", 0, 1), ("worker", 0, 3), ("worker", 1, 3), ("worker", 2, 3),
        ("ps", 0, 2), ("ps", 1, 2), ("evaluator", 0, 1), ("logger", 0, 1),
    ]  # fmt: skip
    assert found[8] is None
    env = rank_environment(gang, 1)
    assert {name: env[name] for name in env if name.startswith("WINDLASS_ROLE")} == {
        "WINDLASS_ROLE": "ps", "WINDLASS_ROLE_RANK": "1", "WINDLASS_ROLE_SIZE": "2",
    }  # fmt: skip
    assert (argv_of(gang, 5), is_essential(gang, 5)) == (("p",), False)
    assert not [name for name in rank_environment(plan(), 0) if name.startswith("WINDLASS_ROLE")]


def test_tensorflow_finds_its_cluster_by_role() -> None:
    gang = plan(roles=ROLES)
    config = json.loads(rank_environment(gang, 1)["TF_CONFIG"])
    assert config["task"] == {"type": "ps", "index": 1}
    assert {name: len(found) for name, found in config["cluster"].items()} == {"chief": 1, "worker": 3, "ps": 2}
    port = int(gang["master_port"]) + 1
    assert config["cluster"]["ps"] == [f"10.0.0.2:{port + 4}", f"10.0.0.2:{port + 5}"]
    evaluator = json.loads(rank_environment(gang, 2)["TF_CONFIG"])
    assert evaluator["task"] == {"type": "evaluator", "index": 0}
    assert evaluator["cluster"] == config["cluster"]  # nobody waits for it
    assert "TF_CONFIG" not in rank_environment(gang, 3)
