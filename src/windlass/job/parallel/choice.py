"""From what a script or a run asks for to the plan that is used: sized for the processes there are."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from windlass.core.plan import InvalidPlan, Plan, parse_plan, plan_of
from windlass.core.wanted import Wanted, parse_wanted
from windlass.job.parallel.split import Cut, Split
from windlass.job.parallel.stages import check_stages
from windlass.job.parallel.tensor import cut_modules
from windlass.job.process import Process
from windlass.job.session import session
from windlass.planning import ClusterFacts, ModelFacts, choose_plan

_COMPILED_FROM = (7, 0)  # Volta: older GPUs have no Triton


def choose(
    wanted: Plan | str | Mapping[str, Any], model: nn.Module, split: Split, process: Process, batch: int | None
) -> Plan:
    """The plan for these processes, this model and this batch; InvalidPlan, on all of them, if there is none.

    A plan that the run's spec does not say is told to its record.
    """
    asked = parse_wanted(wanted)
    if asked.auto:
        plan = _automatic(model_facts(model, split), process, batch, asked)
    else:
        plan = plan_of(asked.named).sized(process.world_size)
    # Before anything is told of it.
    if batch is not None:
        plan.check_batch(batch)
    plan.check_model(split.shape)
    check_stages(model, split, plan)
    if process.is_main:
        if asked.auto or plan_of(asked.named) != session().plan:
            session().note_plan(plan)
        _warn(plan)
    return plan


def _warn(plan: Plan) -> None:
    if plan.pipeline > 1 and plan.accumulate == 1:
        session().alert(
            "plan",
            f"pipeline={plan.pipeline} with accumulate=1 has one microbatch a step, so that only one of "
            f"{plan.pipeline} processes works at a time; try accumulate={4 * plan.pipeline}",
        )


def model_facts(model: nn.Module, split: Split) -> ModelFacts:
    """What the planner wants to know, as far as the model's own table of cuts tells."""
    cut = cut_modules(model, split)
    tables = [m for m, how in cut if isinstance(m, nn.Embedding) and how is Cut.VOCABULARY]
    largest = max(tables, key=lambda table: table.num_embeddings, default=None)
    inner = max((m.in_features for m, how in cut if isinstance(m, nn.Linear) and how is Cut.ROW), default=None)
    into = sum(isinstance(m, nn.Linear) and how is Cut.COLUMN and m.out_features == inner for m, how in cut)
    out = sum(isinstance(m, nn.Linear) and how is Cut.ROW and m.in_features == inner for m, how in cut)
    shape = split.shape
    return ModelFacts(
        parameters=sum(p.numel() for p in model.parameters()),
        layers=shape.layers,
        width=largest.embedding_dim if largest is not None else None,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        inner=inner,
        gated=into > out,
        vocabulary=largest.num_embeddings if largest is not None else None,
        sequence=shape.sequence,
        tied=shape.tied,
        divisible=bool(split.tensor),
        stageable=split.blocks is not None,
    )


def _automatic(model: ModelFacts, process: Process, batch: int | None, wanted: Wanted) -> Plan:
    """One process chooses for all, since they may see different amounts of free memory."""
    chosen: list[Any] = [None]
    if process.is_main:
        try:
            chosen = [choose_plan(model, _cluster(process), batch=batch, wanted=wanted).as_dict()]
        except InvalidPlan as refused:
            chosen = [str(refused)]
    if process.world_size > 1:
        dist.broadcast_object_list(chosen, src=0)
    if isinstance(chosen[0], str):
        raise InvalidPlan(chosen[0])
    return parse_plan(chosen[0]).sized(process.world_size)


def _cluster(process: Process) -> ClusterFacts:
    here = int(os.environ.get("LOCAL_WORLD_SIZE") or process.world_size)
    if process.device.type == "cuda":
        properties = torch.cuda.get_device_properties(process.device)
        kind, memory = properties.name, properties.total_memory
    else:
        kind, memory = "cpu", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // here
    return ClusterFacts(
        world_size=process.world_size,
        gpu_type=kind,
        memory_bytes=memory,
        gpus_per_node=here,
        compiles=_compiles(process.device),
    )


def _compiles(device: torch.device) -> bool:
    """Whether `torch.compile` has all it needs here: Triton, a GPU that it knows, and a compiler of C for its stubs."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < _COMPILED_FROM:
        return False
    compilers = (os.environ.get("CC"), "cc", "gcc", "clang")
    return importlib.util.find_spec("triton") is not None and any(name and shutil.which(name) for name in compilers)
