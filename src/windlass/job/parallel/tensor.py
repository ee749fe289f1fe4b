"""Tensor parallelism: a model's table of cuts becomes DTensor styles, with or without the sequence divided between."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from windlass.core.plan import InvalidPlan, Plan
from windlass.job.parallel.split import Cut, Split
from windlass.job.parallel.units import matching

_SEQUENCE_DIM = 1
_Place = tuple[str, nn.Module, str]  # a path, the module that has the parameter, and under which name
_TAKE_PARTS = (Cut.COLUMN, Cut.NORM, Cut.HEAD)  # with `sequence`, of the sequence


def apply_tensor(part: nn.Module, split: Split, mesh: DeviceMesh, *, sequence: bool) -> None:
    """Divide the modules of `part` that the table names over `mesh`, of one dimension."""
    # Of a model that is sharded too, whose last product hands over a view: the loss would have to change it in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    styles = {name: _style(cut, sequence) for name, cut in _cuts(part, split)}
    for name, cut in _cuts(part, split) if sequence else ():
        if cut in _TAKE_PARTS:
            part.get_submodule(name).register_forward_pre_hook(_needs_sequence(name))
    ties = _ties(part)
    parallelize_module(part, mesh, {name: style for name, style in styles.items() if style is not None})
    for places in ties:
        _tie(places)


def summed_names(part: nn.Module, split: Split, *, sequence: bool) -> list[str]:
    """The parameters that each process has whole and uses on its own part, so that its gradient is a part of a sum."""
    found: dict[str, None] = {}
    for pattern, cut in split.tensor.items():
        if cut is Cut.SUMMED:
            for name in matching([name for name, _ in part.named_modules()], pattern):
                inside = part.get_submodule(name).named_parameters(name)
                found |= dict.fromkeys(path for path, parameter in inside if not is_divided(parameter))
        if cut is Cut.SUMMED or (cut is Cut.NORM and sequence):
            for name in matching([name for name, _ in part.named_parameters()], pattern):
                found |= {} if is_divided(part.get_parameter(name)) else {name: None}
    return list(found)


def is_divided(parameter: nn.Parameter) -> bool:
    """Whether DTensor knows of it over the tensor group; it then puts its gradient together by itself."""
    return isinstance(parameter, DTensor) and "tensor" in (parameter.device_mesh.mesh_dim_names or ())


def cut_modules(model: nn.Module, split: Split) -> list[tuple[nn.Module, Cut]]:
    """Every module that the table names."""
    return [(model.get_submodule(name), cut) for name, cut in _cuts(model, split)]


def check_tensor(model: nn.Module, split: Split, plan: Plan) -> None:
    """InvalidPlan if a product of the model is not divided evenly, which would be wrong without a word."""
    if plan.tensor == 1:
        return
    if not split.tensor:
        raise InvalidPlan(
            f"tensor={plan.tensor} needs a model that says how it may be divided, and {type(model).__name__} has no "
            "`split()` with a table for it; use data or shard, which work with any model"
        )
    for name, cut in _cuts(model, split):
        side = _divided_side(model.get_submodule(name), cut)
        if side is not None and side[1] % plan.tensor:
            raise InvalidPlan(
                f"tensor={plan.tensor} does not divide the {side[1]} {side[0]} of {name}; options: "
                + ", ".join(str(n) for n in range(1, min(side[1], 64) + 1) if side[1] % n == 0)
            )


def _cuts(model: nn.Module, split: Split) -> Iterator[tuple[str, Cut]]:
    names = [name for name, _ in model.named_modules()]
    for pattern, cut in split.tensor.items():
        for name in matching(names, pattern):
            yield name, cut


def _style(cut: Cut, sequence: bool) -> ParallelStyle | None:
    between = Shard(_SEQUENCE_DIM) if sequence else Replicate()
    match cut:
        case Cut.COLUMN:
            return ColwiseParallel(input_layouts=between)
        case Cut.ROW:
            return RowwiseParallel(output_layouts=between)
        case Cut.VOCABULARY:
            return RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
        case Cut.HEAD:
            # Whole logits, so that any loss can be written as for one process.
            return ColwiseParallel(input_layouts=between, output_layouts=Replicate())
        case Cut.SUMMED:
            return None
        case Cut.NORM:
            return SequenceParallel(sequence_dim=_SEQUENCE_DIM, use_local_output=True) if sequence else None


def _ties(part: nn.Module) -> list[list[_Place]]:
    """Where the parameters are that several modules share. Dividing a module gives it new ones."""
    places: dict[nn.Parameter, list[_Place]] = {}
    for path, module in part.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                places.setdefault(parameter, []).append((f"{path}.{name}" if path else name, module, name))
    return [found for found in places.values() if len(found) > 1]


def _tie(places: list[_Place]) -> None:
    """Make one parameter of them again. InvalidPlan if they are divided in different ways."""
    path, module, name = places[0]
    parameter = getattr(module, name)
    for other_path, other, other_name in places[1:]:
        theirs = getattr(other, other_name)
        if _division(theirs) != _division(parameter):
            raise InvalidPlan(
                f"{path} and {other_path} are one parameter, and the table of split() divides them in two ways "
                f"({_division(parameter)} and {_division(theirs)}): each would learn a weight of its own. Options: "
                "cuts that divide both alike (job.Cut.VOCABULARY for an embedding and job.Cut.HEAD for the head), "
                "neither of them in the table, or untied"
            )
        setattr(other, other_name, parameter)


def _division(parameter: nn.Parameter) -> str:
    if not isinstance(parameter, DTensor):
        return "not at all"
    return ", ".join(f"by dimension {p.dim}" if isinstance(p, Shard) else "into copies" for p in parameter.placements)


def _needs_sequence(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def check(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs and isinstance(inputs[0], Tensor) and inputs[0].dim() <= _SEQUENCE_DIM + 1:
            raise InvalidPlan(
                f"sequence=true divides the second of three dimensions (batch, sequence, width), and what {name} is "
                f"given has {inputs[0].dim()}: {tuple(inputs[0].shape)}; leave `sequence` out for this model"
            )

    return check


def _divided_side(module: nn.Module, cut: Cut) -> tuple[str, int] | None:
    if isinstance(module, nn.Linear):
        if cut in (Cut.COLUMN, Cut.HEAD):
            return "outputs", module.out_features
        return ("inputs", module.in_features) if cut is Cut.ROW else None
    if isinstance(module, nn.Embedding) and cut is Cut.VOCABULARY:
        return "rows", module.num_embeddings
    return None
