"""What FSDP2 cannot divide, looked for before anything is exchanged, so that it has a name and a remedy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from windlass.core.plan import InvalidPlan, Plan
from windlass.job.parallel.copies import gives_sparse_gradients, is_divided


def check_sharding(plan: Plan, model: nn.Module, blocks: Sequence[nn.Module]) -> None:
    """InvalidPlan if a parameter of the model cannot be divided, or not together with others of its unit."""
    if not is_divided(plan):
        return
    _check_scalars(plan, model)
    _check_shared(plan, model, blocks)
    _check_types(plan, model, blocks)
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and gives_sparse_gradients(module):
            raise InvalidPlan(
                f"{name} has sparse gradients, which {plan} cannot divide; options: sparse=False, {_COPY}"
            )


_COPY = "or a plan of copies only, such as data"


def _check_scalars(plan: Plan, model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if not parameter.dim():
            raise InvalidPlan(
                f"the parameter {name} has no dimension along which {plan} could divide it; options: one of shape "
                f"(1,), as torch.nn.Parameter(torch.ones(1)), {_COPY}"
            )


def _check_shared(plan: Plan, model: nn.Module, blocks: Sequence[nn.Module]) -> None:
    """Each block is gathered by itself, so nobody else can use what it holds."""
    found = {id(block) for block in blocks}
    places = [path for path, module in model.named_modules(remove_duplicate=False) if id(module) in found]
    holders: dict[int, tuple[str | None, str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        unit = next((place for place in places if f"{path}.".startswith(f"{place}.")), None)
        for name, parameter in module.named_parameters(path, recurse=False):
            first, theirs = holders.setdefault(id(parameter), (unit, name))
            if first != unit:
                raise InvalidPlan(
                    f"the parameter {theirs} is {name} too, in another of the model's repeated layers or outside of "
                    f"them, and {plan} gathers each layer by itself; options: a parameter for each, {_COPY}"
                )


def _check_types(plan: Plan, model: nn.Module, blocks: Iterable[nn.Module]) -> None:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    inside = {id(parameter) for block in blocks for parameter in block.parameters()}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in inside]
    for unit in (*(list(block.parameters()) for block in blocks), rest):
        first: dict[torch.dtype, str] = {}
        for parameter in unit:
            if parameter.requires_grad:
                first.setdefault(parameter.dtype, names[id(parameter)])
        if len(first) > 1:
            (one, name), (other, theirs), *_ = first.items()
            raise InvalidPlan(
                f"the parameter {theirs} is of {other} and {name} of {one}, and {plan} gathers both at once, of one "
                f"type; options: one type for both, as model.to({one}), {_COPY}"
            )
