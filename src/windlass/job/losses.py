"""Cross-entropy of a linear head without holding all of its logits: `linear_cross_entropy`.

A vocabulary of 50,000 makes the logits the largest thing in a language model's memory, and their gradient as large
again. Here they exist for some thousands of positions at a time, in the width the head computes with, and their
gradient is multiplied out at once, in the forward pass; what is kept is as large as the states and the weight.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from windlass.job.products import multiply

IGNORED = -100  # the target of positions that do not count, as torch has it
ROWS = 32768  # positions at a time: 3.3 GB of logits in bf16 with 50,304 words; half as many cost 1% of a small model


def linear_cross_entropy(
    states: Tensor, weight: Tensor, targets: Tensor, *, ignore: int = IGNORED, rows: int = ROWS
) -> Tensor:
    """The mean of `cross_entropy(states @ weight.T, targets)` over the targets that are not `ignore`.

    Computes with autocast's type where that is on, else with the states' own; sums are in fp32. Can be differentiated
    once, by states and weight.
    """
    if torch.is_autocast_enabled(states.device.type):
        states = states.to(torch.get_autocast_dtype(states.device.type))
    loss: Tensor = _LinearCrossEntropy.apply(states.flatten(0, -2), weight, targets.flatten(), ignore, rows)  # type: ignore[no-untyped-call]
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, targets: Tensor, ignore: int, rows: int) -> Tensor:
        by_states, by_weight = ctx.needs_input_grad[:2]
        narrow = weight.detach().to(states.dtype)
        parts = _even_parts(len(states), rows)
        d_states = states.new_empty(states.shape) if by_states else None  # contiguous, whatever they are
        d_weight: Tensor | None = None
        losses = []
        with torch.autocast(states.device.type, enabled=False):
            for part in parts:
                logits = multiply(states[part], narrow.t())
                losses.append(_cross_entropy_of(logits.device.type)(logits, targets[part], ignore))
                d_logits = logits  # it has taken their place
                if d_states is not None:
                    multiply(d_logits, narrow, out=d_states[part])
                if by_weight:
                    product = multiply(d_logits.t(), states[part])
                    # The products of several parts are summed in fp32.
                    d_weight = product if len(parts) == 1 else _sum(d_weight, product)
                del logits, d_logits
        count = (targets != ignore).sum().clamp(min=1).float()
        ctx.save_for_backward(d_states, d_weight, count)
        ctx.weight_dtype = weight.dtype
        return torch.cat(losses).sum() / count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        d_states, d_weight, count = ctx.saved_tensors
        # Only here are they made small by the mean and large again by a loss scale: fp16 could not hold them between.
        scale = gradients[0] / count
        return (
            None if d_states is None else (d_states * scale).to(d_states.dtype),
            None if d_weight is None else (d_weight * scale).to(ctx.weight_dtype),
            None,
            None,
            None,
        )


def _cross_entropy_(logits: Tensor, targets: Tensor, ignore: int) -> Tensor:
    """The loss of every row, and the rows' gradients in place of the logits."""
    counted = targets != ignore
    at = targets.masked_fill(~counted, 0)[:, None]
    wide = logits.float()
    log_sum = wide.logsumexp(dim=1, keepdim=True)
    losses = (log_sum - wide.gather(1, at))[:, 0] * counted
    gradient = wide.sub_(log_sum).exp_()
    gradient.scatter_add_(1, at, torch.full_like(log_sum, -1.0))
    logits.copy_(gradient.mul_(counted[:, None]))
    return losses


@functools.cache
def _cross_entropy_of(device_type: str) -> Callable[[Tensor, Tensor, int], Tensor]:
    if device_type == "cuda" and importlib.util.find_spec("triton") is not None:
        fused: Callable[[Tensor, Tensor, int], Tensor] = importlib.import_module("windlass.job.kernels").cross_entropy_
        return fused
    return _cross_entropy_


def _sum(total: Tensor | None, product: Tensor) -> Tensor:
    return product.float() if total is None else total.add_(product)


def _even_parts(length: int, rows: int) -> list[slice]:
    """As few parts as `rows` allows, of nearly one size, so that no small rest runs slowly."""
    size = -(-length // max(1, -(-length // rows)))
    return [slice(at, min(at + size, length)) for at in range(0, length, max(1, size))]
