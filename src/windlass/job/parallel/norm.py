"""One norm of the whole gradient, over all copies, parts and stages, each element counted once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from windlass.core.plan import Plan


def settle_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Give every gradient the layout of its parameter: some come out of the backward pass as parts of a sum. Of sparse
    ones, each row is there once then."""
    for parameter in parameters:
        grad = parameter.grad
        if grad is not None and grad.is_sparse and not grad.is_coalesced():
            parameter.grad = grad.coalesce()
        if isinstance(grad, DTensor) and isinstance(parameter, DTensor) and grad.placements != parameter.placements:
            parameter.grad = grad.redistribute(placements=parameter.placements)


def local_gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """What this process holds of the gradients, as plain tensors that share their memory."""
    return [local(parameter.grad) for parameter in parameters if parameter.grad is not None]


def local(tensor: Tensor) -> Tensor:
    if tensor.is_sparse:
        return tensor._values()
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def gradient_norm(parameters: list[nn.Parameter], plan: Plan, device: torch.device) -> Tensor:
    """The same number on every process, on the device; nothing waits for it on the host."""
    # One call takes many tensors, of one type.
    alike: dict[tuple[int, torch.dtype], list[Tensor]] = defaultdict(list)
    for parameter in parameters:
        if parameter.grad is not None:
            alike[_owners(parameter, plan), parameter.grad.dtype].append(local(parameter.grad))
    total = torch.zeros((), device=device)
    for (owners, _), gradients in alike.items():
        norms: Any = torch._foreach_norm(gradients)
        squares = torch.stack([norm.float() for norm in norms]).square().sum().to(device)
        total = total + squares / owners
    # Plain copies have the same gradients to the bit: nothing to ask the others.
    if plan.shard * plan.tensor * plan.pipeline > 1:
        dist.all_reduce(total)
    return total.sqrt()


def _owners(parameter: nn.Parameter, plan: Plan) -> int:
    """How many processes hold these same elements."""
    if plan.shard * plan.tensor * plan.pipeline == 1:
        return 1  # nobody is asked
    parts = 1
    if isinstance(parameter, DTensor):
        for place, size in zip(parameter.placements, parameter.device_mesh.shape, strict=True):
            parts *= size if isinstance(place, Shard) or type(place).__name__ == "_StridedShard" else 1
    return plan.world_size // (parts * (1 if is_in_all_stages(parameter) else plan.pipeline))


def mark_in_all_stages(parameter: nn.Parameter) -> None:
    """Every process of the pipeline has it, with one gradient."""
    parameter.in_all_stages = True  # type: ignore[attr-defined]


def is_in_all_stages(parameter: nn.Parameter) -> bool:
    return getattr(parameter, "in_all_stages", False)
