"""The cutting of a model into pipeline stages: which blocks a stage has, and the model with only those in it."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from torch import nn

from windlass.core.plan import InvalidPlan, Plan
from windlass.job.parallel.split import Split

_MOST_SHOWN = 5


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
    _check_ties(model, split, plan)
    _check_interleaving(model, split, plan)


def names_in_all_stages(model: nn.Module, split: Split, plan: Plan) -> list[str]:
    """The parameters that no stage has alone: what is neither in the blocks nor named in `first` or `last`."""
    assert split.blocks is not None
    if plan.total_stages == 1:
        return []
    first, last = (
        {name for name, _ in cut_stage(model, split, stage, plan.total_stages).named_parameters()}
        for stage in (0, plan.total_stages - 1)
    )
    return [name for name, _ in model.named_parameters() if name in first and name in last]


def _check_ties(model: nn.Module, split: Split, plan: Plan) -> None:
    """InvalidPlan if two names in different stages are one parameter: each stage would learn a weight of its own."""
    seen: dict[nn.Parameter, tuple[str, int]] = {}
    for stage in range(plan.total_stages):
        for name, parameter in cut_stage(model, split, stage, plan.total_stages).named_parameters():
            other, where = seen.setdefault(parameter, (name, stage))
            if other != name and where != stage and parameter.requires_grad:
                raise InvalidPlan(
                    f"pipeline={plan.pipeline} puts {other} into stage {where} and {name} into stage {stage}, and in "
                    "this model they are one parameter, of which each stage would learn its own; untie them or use "
                    "pipeline=1"
                )


def _check_interleaving(model: nn.Module, split: Split, plan: Plan) -> None:
    names = [name for name in names_in_all_stages(model, split, plan) if model.get_parameter(name).requires_grad]
    if names and plan.total_stages > plan.pipeline:
        raise InvalidPlan(
            f"schedule={plan.schedule} gives each process several stages, and all of them have {in_words(names)}; name "
            "in first or last of split() what one stage uses alone, or use schedule=1f1b or gpipe"
        )


def in_words(names: Sequence[str]) -> str:
    rest = len(names) - _MOST_SHOWN
    return ", ".join(names[:_MOST_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def cut_stage(model: nn.Module, split: Split, stage: int, stages: int) -> nn.Module:
    """The model with one stage's modules only. They are the model's own; what holds them is copied, names stay."""
    assert split.blocks is not None
    part = _copy(model)
    names = [name for name, _ in model.get_submodule(split.blocks).named_children()]
    mine = blocks_of_stages(names, stages)[stage]
    blocks = _copy(model.get_submodule(split.blocks))
    blocks._modules = {name: module for name, module in blocks._modules.items() if name in mine}
    _replace(part, split.blocks, blocks)
    elsewhere = (*(split.first if stage > 0 else ()), *(split.last if stage < stages - 1 else ()))
    for name in sorted(elsewhere, key=lambda name: -name.count(".")):  # what is in another one of them before that
        _drop(part, name)
    return part


def _copy(module: nn.Module) -> nn.Module:
    """A module of its own that has the same children, parameters and buffers."""
    twin = copy.copy(module)
    for table in ("_modules", "_parameters", "_buffers"):
        setattr(twin, table, dict(getattr(module, table)))
    return twin


def _replace(root: nn.Module, name: str, module: nn.Module) -> None:
    """Put `module` in place of the one at a dotted path."""
    holder, leaf = _own_holder(root, name)
    holder._modules[leaf] = module


def _drop(root: nn.Module, name: str) -> None:
    """Put None in place of the module, the parameter or the buffer at a dotted path."""
    holder, leaf = _own_holder(root, name)
    for table in (holder._parameters, holder._buffers):
        if leaf in table:
            table[leaf] = None
            return
    holder._modules[leaf] = None


def _own_holder(root: nn.Module, name: str) -> tuple[nn.Module, str]:
    """What holds the last one of a dotted path, and that one's name. What is on the way to it is copied."""
    holder = root
    *path, leaf = name.split(".")
    for step in path:
        child = _copy(holder.get_submodule(step))
        holder._modules[step] = child
        holder = child
    return holder, leaf
