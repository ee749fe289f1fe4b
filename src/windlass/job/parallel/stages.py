"""The cutting of a model into pipeline stages: which blocks a stage has, and the model with only those in it."""

from __future__ import annotations

import copy

from torch import nn

from windlass.core.plan import InvalidPlan, Plan
from windlass.job.parallel.split import Split


def stages_of(place: int, plan: Plan) -> list[int]:
    """The stages that the process at `place` of the pipeline has: every `pipeline`-th one."""
    return list(range(place, plan.total_stages, plan.pipeline))


def blocks_of_stages(names: list[str], stages: int) -> list[list[str]]:
    """Consecutive blocks for each stage, evenly; early stages get what is left over, the last one has the head."""
    least, rest = divmod(len(names), stages)
    cut, start = [], 0
    for stage in range(stages):
        end = start + least + (stage < rest)
        cut.append(names[start:end])
        start = end
    return cut


def check_stages(model: nn.Module, split: Split, plan: Plan) -> None:
    """InvalidPlan if the model does not say where it may be cut, or has too few blocks."""
    if plan.pipeline == 1:
        return
    if split.blocks is None:
        raise InvalidPlan(
            f"pipeline={plan.pipeline} needs a model that says where it may be cut, and {type(model).__name__} has no "
            "`split()` that names its blocks; use data or shard, which work with any model"
        )
    count = len(list(model.get_submodule(split.blocks).children()))
    if plan.total_stages > count:
        raise InvalidPlan(
            f"pipeline={plan.pipeline} makes {plan.total_stages} stages, and the model has {count} blocks; "
            f"at most {count} stages fit"
        )


def cut_stage(model: nn.Module, split: Split, stage: int, stages: int) -> nn.Module:
    """The model with one stage's modules only. They are the model's own; what holds them is copied, names stay."""
    assert split.blocks is not None
    part = _copy(model)
    names = [name for name, _ in model.get_submodule(split.blocks).named_children()]
    mine = blocks_of_stages(names, stages)[stage]
    blocks = _copy(model.get_submodule(split.blocks))
    blocks._modules = {name: module for name, module in blocks._modules.items() if name in mine}
    _replace(part, split.blocks, blocks)
    if stage > 0:
        for name in split.first:
            _replace(part, name, None)
    if stage < stages - 1:
        for name in split.last:
            _replace(part, name, None)
    return part


def _copy(module: nn.Module) -> nn.Module:
    """A module of its own that has the same children, parameters and buffers."""
    twin = copy.copy(module)
    for table in ("_modules", "_parameters", "_buffers"):
        setattr(twin, table, dict(getattr(module, table)))
    return twin


def _replace(root: nn.Module, name: str, module: nn.Module | None) -> None:
    """Put `module` in place of the one at a dotted path, copying what is on the way to it."""
    holder = root
    *path, leaf = name.split(".")
    for step in path:
        child = _copy(holder.get_submodule(step))
        holder._modules[step] = child
        holder = child
    holder._modules[leaf] = module
