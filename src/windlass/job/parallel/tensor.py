"""Tensor parallelism: a model's table of cuts becomes DTensor styles, with or without the sequence divided between."""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Iterator

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from windlass.core.plan import InvalidPlan, Plan
from windlass.job.parallel.split import Cut, Split

_SEQUENCE_DIM = 1


def apply_tensor(part: nn.Module, split: Split, mesh: DeviceMesh, *, sequence: bool) -> None:
    """Divide the modules of `part` that the table names over `mesh`, of one dimension."""
    # Of a model that is sharded too, whose last product hands over a view: the loss would have to change it in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    styles = {name: _style(cut, sequence) for name, cut in _cuts(part, split)}
    parallelize_module(part, mesh, {name: style for name, style in styles.items() if style is not None})


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
        depth = pattern.count(".")
        for name in names:
            # `*` is one part of the path, so it matches no dot.
            if name.count(".") == depth and fnmatch.fnmatchcase(name, pattern):
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
        case Cut.NORM:
            return SequenceParallel(sequence_dim=_SEQUENCE_DIM, use_local_output=True) if sequence else None


def _divided_side(module: nn.Module, cut: Cut) -> tuple[str, int] | None:
    if isinstance(module, nn.Linear):
        if cut in (Cut.COLUMN, Cut.HEAD):
            return "outputs", module.out_features
        return ("inputs", module.in_features) if cut is Cut.ROW else None
    if isinstance(module, nn.Embedding) and cut is Cut.VOCABULARY:
        return "rows", module.num_embeddings
    return None
