"""Linear layers whose products are in 8 bits: `apply_fp8`.

States, weights and gradients are e4m3, each row (or column) divided by what makes its largest element the type's
largest, so that one outlier costs its own row digits, not all. The product for the weight's gradient, which sums over
all rows and would need them divided the other way too, stays in 16 bits. Sums are longer, results are bf16, and the
weights themselves stay as they are: the optimizer never sees 8 bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from windlass.job.layers import narrowed, plain_linears, replace_linears

LOW = torch.float8_e4m3fn
_ALIGNED = 16  # elements: what the matrix units take at once
_SMALLEST = 2.0**-100  # of a scale: a tensor of zeros has one too


def apply_fp8(blocks: Iterable[nn.Module]) -> None:
    """Give the linear layers in `blocks` products in 8 bits, those that can have them. Parameters and names stay."""
    replace_linears(blocks, Fp8Linear, _fits)


def has_layers(blocks: Iterable[nn.Module]) -> bool:
    """Whether `apply_fp8` would change anything."""
    return any(True for _ in plain_linears(blocks, _fits))


class Fp8Linear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        rows = narrowed(input).flatten(0, -2)
        if rows.shape[0] % _ALIGNED:
            return super().forward(input)
        out: Tensor = _Product.apply(rows, self.weight.to(rows.dtype))  # type: ignore[no-untyped-call]
        if self.bias is not None:
            out = out + self.bias.to(out.dtype)
        return out.view(*input.shape[:-1], -1)


def scaled(x: Tensor) -> tuple[Tensor, Tensor]:
    """`x` in 8 bits, and what to multiply each row of that with to have `x` again. What is no number stays none."""
    most = torch.finfo(LOW).max
    scale = (x.abs().amax(dim=1, keepdim=True).float() / most).clamp(min=_SMALLEST)
    return (x.float() / scale).clamp(-most, most).to(LOW).contiguous(), scale


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        # As they are and not in 8 bits: so the weight's gradient wants them, and a sharded weight is gone meanwhile.
        ctx.save_for_backward(x, weight)
        return _multiply(x, weight.t(), fast=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        d_x = d_weight = None
        if ctx.needs_input_grad[0]:
            d_x = _multiply(gradient, weight, fast=False).to(x.dtype)
        if ctx.needs_input_grad[1]:
            d_weight = torch.ops.windlass.product(gradient.to(x.dtype).t(), x).to(weight.dtype)
        return d_x, d_weight


def _multiply(a: Tensor, b: Tensor, *, fast: bool) -> Tensor:
    """`a @ b`, by rows of `a` and columns of `b`, each lying in one piece: the only order that Hopper's units know.

    `fast`: sums are kept with fewer digits, which gradients would notice.
    """
    a8, a_scale = scaled(a)
    b8, b_scale = scaled(b.t())
    if not a.is_cuda:  # for tests: elsewhere torch knows one scale for a whole matrix only
        return ((a8.float() * a_scale) @ (b8.float() * b_scale).t()).bfloat16()
    return torch._scaled_mm(a8, b8.t(), a_scale, b_scale.t(), out_dtype=torch.bfloat16, use_fast_accum=fast)


def _fits(layer: nn.Linear) -> bool:
    return not (layer.in_features % _ALIGNED or layer.out_features % _ALIGNED)
