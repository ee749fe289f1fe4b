"""Linear layers whose products are made in the way that is fastest on this GPU: `apply_fastest`.

The values are those of the usual layers: the same products, sums in fp32, results in bf16.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from windlass.job import cublaslt
from windlass.job.layers import narrowed, replace_linears


def apply_fastest(blocks: Iterable[nn.Module]) -> None:
    """Give the plain linear layers in `blocks` such products. Parameters and names stay."""
    replace_linears(blocks, FastLinear)


class FastLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        if not takes(input, self):
            return super().forward(input)
        rows = narrowed(input).flatten(0, -2)
        out: Tensor = _Linear.apply(rows, self.weight.to(rows.dtype))  # type: ignore[no-untyped-call]
        if self.bias is not None:
            out = out + self.bias.to(out.dtype)
        return out.view(*input.shape[:-1], -1)


def takes(x: Tensor, layer: nn.Linear) -> bool:
    """Whether this layer's products with `x` would be in bf16, on a GPU, and of a weight that is here as a whole."""
    if not x.is_cuda or x.dim() < 2 or isinstance(layer.weight, DTensor):
        return False
    return (torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype) == torch.bfloat16


def multiply(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """`a @ b`, of matrices or transposes of them."""
    if cublaslt.usable(a, b):
        return cublaslt.multiply(a, b, out=out)
    return torch.mm(a, b, out=out) if out is not None else a @ b


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        out: Tensor = torch.ops.windlass.product(x, weight.t())
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        d_x = torch.ops.windlass.product(gradient, weight) if ctx.needs_input_grad[0] else None
        d_weight = torch.ops.windlass.product(gradient.t(), x) if ctx.needs_input_grad[1] else None
        return d_x, d_weight


# As an operator, which torch's compiler takes as it is.


@torch.library.custom_op("windlass::product", mutates_args=(), schema="(Tensor a, Tensor b) -> Tensor")
def _product(a: Tensor, b: Tensor) -> Tensor:
    return multiply(a, b)


@_product.register_fake
def _(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[1])
