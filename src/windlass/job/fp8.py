"""Linear layers whose products are in 8 bits: `apply_fp8`.

States and weights are e4m3; gradients, which need range more than digits, are e5m2. Each tensor is divided by what
makes its largest element of that moment the type's largest. Sums are longer, results are bf16, and the weights
themselves stay as they are: the optimizer never sees 8 bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

STATES, GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2
_ALIGNED = 16  # elements: what the matrix units take at once
_SMALLEST = 2.0**-100  # of a scale: a tensor of zeros has one too


def apply_fp8(blocks: Iterable[nn.Module]) -> None:
    """Give the linear layers in `blocks` products in 8 bits, those that can have them. Parameters and names stay."""
    for parent, name, layer in list(_layers(blocks)):
        with torch.device("meta"):
            low = Fp8Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
        low.weight, low.bias = layer.weight, layer.bias
        setattr(parent, name, low)


def has_layers(blocks: Iterable[nn.Module]) -> bool:
    """Whether `apply_fp8` would change anything."""
    return any(True for _ in _layers(blocks))


class Fp8Linear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        rows = input.flatten(0, -2)
        if rows.shape[0] % _ALIGNED:
            return super().forward(input)  # the rows are what the product for the weight's gradient sums over
        out: Tensor = _Product.apply(rows, self.weight)  # type: ignore[no-untyped-call]
        if self.bias is not None:
            out = out + self.bias.to(out.dtype)
        return out.view(*input.shape[:-1], -1)


def scaled(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`x` in `dtype`, and what to multiply that with to have `x` again. Not a number stays not a number."""
    most = torch.finfo(dtype).max
    scale = (x.abs().amax().float() / most).clamp(min=_SMALLEST)
    return _divided(x, scale, dtype), scale


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x8, x_scale = scaled(x, STATES)
        w8, w_scale = scaled(weight, STATES)
        # The weight as it is and not in 8 bits, which would be a second copy of the model between the two passes; where
        # weights are sharded, this one is gone meanwhile.
        ctx.save_for_backward(x8, x_scale, weight, w_scale)
        ctx.dtype = x.dtype
        return _multiply(x8, x_scale, w8.t(), w_scale, fast=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x8, x_scale, weight, w_scale = ctx.saved_tensors
        g8, g_scale = scaled(gradients[0], GRADIENTS)
        d_x = d_weight = None
        if ctx.needs_input_grad[0]:
            w8 = _divided(weight, w_scale, STATES)
            d_x = _multiply(g8, g_scale, _by_columns(w8), w_scale, fast=False).to(ctx.dtype)
        if ctx.needs_input_grad[1]:
            product = _multiply(g8.t().contiguous(), g_scale, _by_columns(x8), x_scale, fast=False)
            d_weight = product.to(weight.dtype)
        return d_x, d_weight


def _divided(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    most = torch.finfo(dtype).max
    return (x.contiguous().float() / scale).clamp(-most, most).to(dtype)


def _multiply(a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, *, fast: bool) -> Tensor:
    """Rows of `a` with columns of `b`, each lying in one piece: the only order that Hopper's 8-bit units know.

    `fast`: sums are kept with fewer digits, which gradients would notice.
    """
    return torch._scaled_mm(a, b, a_scale, b_scale, out_dtype=torch.bfloat16, use_fast_accum=fast)


def _by_columns(x: Tensor) -> Tensor:
    return x.t().contiguous().t()


def _layers(blocks: Iterable[nn.Module]) -> Iterable[tuple[nn.Module, str, nn.Linear]]:
    for block in blocks:
        for parent in block.modules():
            for name, layer in parent.named_children():
                # Of this very class: what a subclass does with its weight is not known.
                if type(layer) is nn.Linear and not (layer.in_features % _ALIGNED or layer.out_features % _ALIGNED):
                    yield parent, name, layer
