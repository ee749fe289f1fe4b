"""Two linear layers with a GELU between them: `gelu_mlp`, in four passes over the wide middle instead of seven.

Forward and backward are one function, because the derivative of the GELU belongs to the product that comes before it
in the backward pass, which is the second layer's.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor, nn

from windlass.job import cublaslt
from windlass.job.layers import narrowed
from windlass.job.products import fits_sum, is_plain, takes


def gelu_mlp(x: Tensor, up: Tensor, down: Tensor, states: Tensor | None = None) -> Tensor:
    """`gelu(x @ up.T) @ down.T` (GELU by tanh), with the type that autocast or `x` has; plus `states`, if given."""
    if states is not None and not fits_sum(states):
        return states + gelu_mlp(x, up, down)
    rows = narrowed(x).flatten(0, -2)
    added = None if states is None else states.flatten(0, -2)
    out: Tensor = _GeluMlp.apply(rows, up.to(rows.dtype), down.to(rows.dtype), added)  # type: ignore[no-untyped-call]
    return out.view(*x.shape[:-1], -1)


def fuses(x: Tensor, up: nn.Linear, down: nn.Linear) -> bool:
    """Whether `gelu_mlp` may take the place of these layers: plain ones without biases, in bf16 on a GPU, and whole."""
    return all(is_plain(layer) and takes(x, layer) for layer in (up, down))


class _GeluMlp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Tensor, down: Tensor, added: Tensor | None) -> Tensor:
        middle, before = torch.ops.windlass.linear_gelu(x, up)
        ctx.save_for_backward(x, up, down, middle, before)
        out: Tensor = torch.ops.windlass.product(middle, down.t(), added)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, up, down, middle, before = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        d_before: Tensor = torch.ops.windlass.product_dgelu(gradient, down, before)
        product = torch.ops.windlass.product
        d_added = gradient if ctx.needs_input_grad[3] else None
        return product(d_before, up), product(d_before.t(), x), product(gradient.t(), middle), d_added


# As operators, which torch's compiler takes as they are.


@torch.library.custom_op(
    "windlass::linear_gelu", mutates_args=(), schema="(Tensor x, Tensor weight) -> (Tensor, Tensor)"
)
def _linear_gelu(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    if cublaslt.usable(x, weight):
        return cublaslt.linear_gelu(x.contiguous(), weight.contiguous())
    before = x @ weight.t()
    return F.gelu(before, approximate="tanh"), before


@_linear_gelu.register_fake
def _(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], weight.shape[0]), x.new_empty(x.shape[0], weight.shape[0])


@torch.library.custom_op(
    "windlass::product_dgelu", mutates_args=(), schema="(Tensor gradient, Tensor weight, Tensor before) -> Tensor"
)
def _product_dgelu(gradient: Tensor, weight: Tensor, before: Tensor) -> Tensor:
    if cublaslt.usable(gradient, weight):
        return cublaslt.product_dgelu(gradient.contiguous(), weight.contiguous(), before.contiguous())
    d_before: Tensor = torch.ops.aten.gelu_backward(gradient @ weight, before, approximate="tanh")
    return d_before


@_product_dgelu.register_fake
def _(gradient: Tensor, weight: Tensor, before: Tensor) -> Tensor:  # noqa: ARG001
    return torch.empty_like(before)
