"""The environment a rank finds: one table for every framework's convention. Pure."""

from __future__ import annotations

import json
import os
from typing import Any, Mapping, NamedTuple

from .digest import sha256_of

Plan = Mapping[str, Any]
# What a cluster says in a job's environment about the devices that are its own, and the job's name there.
_TOLD_BY_CLUSTERS = (
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "SLURM_JOB_ID",
    "SLURM_JOB_GPUS",
    "SLURM_JOB_PARTITION",
)

# The roles that TensorFlow's cluster consists of. An evaluator has a task, but is in nobody's cluster: nobody should
# wait for it.
_TF_CLUSTER = ("chief", "worker", "ps")
_TF_TASKS = (*_TF_CLUSTER, "evaluator")

# What is said to the agent, and what describes its own step of a Slurm job: frameworks would take it for theirs.
_NOT_FOR_RANKS = ("WINDLASS_", "SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "PMI_", "PMIX_")
_EVERYWHERE = {"PATH": os.defpath, "HOME": "/", "LANG": "C.UTF-8"}  # programs count on these; not every node has them


def ranks_per_node(plan: Plan) -> int:
    """How many processes we start on a node: a self-launching command is one, whatever it starts itself."""
    return 1 if plan["self_launching"] else int(plan["workers_per_node"])


class RankRole(NamedTuple):
    """A rank's place in a gang whose processes do different work."""

    name: str
    rank: int  # among those with this role
    size: int
    argv: tuple[str, ...]
    essential: bool


def role_of(plan: Plan, rank: int) -> RankRole | None:
    """Ranks belong to roles in their order; None where there are no roles."""
    first = 0
    for role in plan.get("roles") or ():
        if rank < first + role["count"]:
            return RankRole(role["name"], rank - first, role["count"], tuple(role["argv"]), bool(role["essential"]))
        first += role["count"]
    return None


def argv_of(plan: Plan, rank: int) -> tuple[str, ...]:
    role = role_of(plan, rank)
    return role.argv if role is not None else tuple(plan["argv"])


def is_essential(plan: Plan, rank: int) -> bool:
    """Whether the attempt goes on until this rank has ended."""
    role = role_of(plan, rank)
    return role is None or role.essential


def node_id(attempt_id: str, node_rank: int, node_dir: str) -> str:
    """What processes of a node of an attempt are known by. The folder is part of it: a copy of a home has the same
    attempts, and must not take the original's processes for its own."""
    return "%s/%d@%s" % (attempt_id, node_rank, sha256_of(node_dir)[:8])


def global_rank(plan: Plan, local_rank: int) -> int:
    return int(plan["node_rank"]) * ranks_per_node(plan) + local_rank


def allotted_devices(environ: Mapping[str, str], count: int) -> dict[str, Any]:
    """For a plan whose GPUs the cluster chose: their numbers, and the variables that pass the choice on to ranks."""
    told = {name: environ[name] for name in _TOLD_BY_CLUSTERS if name in environ}
    if not count:
        told["CUDA_VISIBLE_DEVICES"] = ""  # a cluster that does not fence devices off would show them all
    words = [word.strip() for word in told.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")]
    return {"gpu_indices": [int(word) for word in words if word.isdigit()], "device_env": told}


def inherited_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What ranks have of their node's own environment."""
    return {**_EVERYWHERE, **{name: text for name, text in environ.items() if not name.startswith(_NOT_FOR_RANKS)}}


def rank_environment(plan: Plan, local_rank: int) -> dict[str, str]:
    """What `plan` gives to one rank. The user's own variables win over our conveniences, never over identity."""
    return {**_conveniences(plan, local_rank), **plan["env"], **_identity(plan, local_rank)}


def _identity(plan: Plan, local_rank: int) -> dict[str, str]:
    workers = int(plan["workers_per_node"])
    rank = global_rank(plan, local_rank)
    table = {
        "NODE_RANK": plan["node_rank"],
        "GROUP_WORLD_SIZE": plan["nnodes"],
        "MASTER_ADDR": plan["master_addr"],
        "MASTER_PORT": plan["master_port"],
        "PET_NNODES": plan["nnodes"],
        "PET_NPROC_PER_NODE": workers,
        "PET_NODE_RANK": plan["node_rank"],
        "PET_MASTER_ADDR": plan["master_addr"],
        "PET_MASTER_PORT": plan["master_port"],
        "WINDLASS_RUN_ID": plan["run_id"],
        "WINDLASS_ATTEMPT_ID": plan["attempt_id"],
        "WINDLASS_ATTEMPT": plan["attempt"],
        "WINDLASS_NODE_ID": node_id(plan["attempt_id"], int(plan["node_rank"]), plan["node_dir"]),
        "WINDLASS_NODE_DIR": plan["node_dir"],
        "WINDLASS_RANK": rank,
        "WINDLASS_GENERATION": plan.get("generation", 0),
    }
    if not plan["self_launching"]:
        table.update(
            RANK=rank,
            LOCAL_RANK=local_rank,
            WORLD_SIZE=int(plan["nnodes"]) * workers,
            LOCAL_WORLD_SIZE=workers,
            GROUP_RANK=plan["node_rank"],
        )
    if plan.get("memory_dir"):
        table["WINDLASS_MEMORY_DIR"] = plan["memory_dir"]
    role = role_of(plan, rank)
    if role is not None:
        table.update(WINDLASS_ROLE=role.name, WINDLASS_ROLE_RANK=role.rank, WINDLASS_ROLE_SIZE=role.size)
    if "device_env" in plan:
        table.update(plan["device_env"])
    elif plan["gpu_indices"] or plan["node_gpus"]:
        table["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, plan["gpu_indices"]))
    return {name: str(value) for name, value in table.items()}


def _conveniences(plan: Plan, local_rank: int) -> dict[str, str]:
    world = int(plan["nnodes"]) * ranks_per_node(plan)
    rank = global_rank(plan, local_rank)
    port = int(plan["master_port"])
    table = {
        "JAX_COORDINATOR_ADDRESS": "%s:%d" % (plan["master_addr"], port),
        "JAX_COORDINATOR_PORT": str(port),
        "JAX_NUM_PROCESSES": str(world),
        "JAX_PROCESS_ID": str(rank),
        "SM_MODEL_DIR": plan["run_dir"] + "/model",
        "SM_HPS": plan["env"].get("WINDLASS_PARAMS", "{}"),
        "SM_NUM_GPUS": str(len(plan["gpu_indices"])),
        "SM_HOSTS": json.dumps(plan["node_names"]),
        "SM_CURRENT_HOST": plan["node_name"],
        "PYTHONUNBUFFERED": "1",
    }
    if world > 1 and (tf_config := _tf_config(plan, rank)):
        table["TF_CONFIG"] = tf_config
    if plan["env"].get("WINDLASS_FRAMEWORK") == "jax":
        table.update(_jax_cluster(rank, world, local_rank, table["JAX_COORDINATOR_ADDRESS"]))
    if plan["gpu_indices"] and "device_env" not in plan:
        table["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the numbering that the allotted indices are in
    if not plan["self_launching"] and int(plan["workers_per_node"]) > 1:
        table["OMP_NUM_THREADS"] = "1"  # as torchrun does: each rank taking all cores makes them all slow
    return table


def _jax_cluster(rank: int, world: int, local_rank: int, coordinator: str) -> dict[str, str]:
    """JAX takes numbers of processes from launchers it knows only, so we speak as one of them. To JAX alone: others
    would take these for a real Open MPI."""
    return {
        "OMPI_MCA_orte_hnp_uri": "0.0;tcp://" + coordinator,
        "OMPI_COMM_WORLD_SIZE": str(world),
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
    }


def _tf_config(plan: Plan, rank: int) -> str | None:
    """TensorFlow wants a port for every process; they follow the master's. None for a role that it does not know."""
    addresses = [
        "%s:%d" % (address, int(plan["master_port"]) + 1 + node * ranks_per_node(plan) + local)
        for node, address in enumerate(plan["node_addrs"])
        for local in range(ranks_per_node(plan))
    ]
    role = role_of(plan, rank)
    if role is None:
        return json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}})
    if role.name not in _TF_TASKS:
        return None
    cluster: dict[str, list[str]] = {}
    for other, address in enumerate(addresses):
        found = role_of(plan, other)
        if found is not None and found.name in _TF_CLUSTER:
            cluster.setdefault(found.name, []).append(address)
    return json.dumps({"cluster": cluster, "task": {"type": role.name, "index": role.rank}})
