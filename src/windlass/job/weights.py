"""The weights of a parallel model in one piece, under the names that they have in the plain model."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from windlass.job.adamw import NarrowAdamW, exact_weights
from windlass.job.parallel.optimizer import Optimizer
from windlass.job.parallel.parallelize import Parallel
from windlass.job.session import session


@torch.no_grad()
def whole_weights(
    parallel: Parallel, wanted: Callable[[str], bool] | None = None, *, optimizer: Optimizer | None = None
) -> dict[str, Tensor] | None:
    """On the first process a state dict in the host's memory, None on the others. Every process must call it.

    `wanted`: by its name, whether a tensor is to be part of it. `optimizer`: may have weights that are more exact than
    the model's.
    """
    inner = optimizer.inner if optimizer is not None else None
    here: dict[str, Tensor] = {}
    for part in parallel.parts:
        state = exact_weights(part, inner) if isinstance(inner, NarrowAdamW) else part.state_dict()
        for name, tensor in state.items():
            if wanted is not None and not wanted(name):
                continue
            whole = _whole(tensor) if isinstance(tensor, DTensor) else tensor
            if _speaks(parallel):
                here[name] = whole.detach().to("cpu", copy=True)
    if parallel.plan.pipeline > 1:
        everyone: list[Any] | None = [None] * dist.get_world_size() if session().is_main else None
        dist.gather_object(here, everyone)
        here = {name: tensor for part in everyone or () for name, tensor in part.items()}
    return here if session().is_main else None


def _whole(tensor: DTensor) -> Tensor:
    with _without_advice():
        return tensor.full_tensor()


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    """Of tensors that are divided in two ways at once PyTorch says that each is put together by two collectives, with
    results that may differ between ranks. Here nothing is summed, and it happens once."""
    teller = logging.getLogger("torch.distributed.tensor._redistribute")
    teller.addFilter(_is_no_advice)
    try:
        yield
    finally:
        teller.removeFilter(_is_no_advice)


def _is_no_advice(record: logging.LogRecord) -> bool:
    return "This is suboptimal" not in str(record.msg)


def _speaks(parallel: Parallel) -> bool:
    """One process of every pipeline stage, the first one among them, keeps what it has gathered."""
    plan = parallel.plan
    return session().rank % max(1, plan.world_size // plan.pipeline) == 0
