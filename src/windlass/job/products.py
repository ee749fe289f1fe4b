"""Linear layers whose products are made in the way that is fastest on this GPU: `apply_fastest`, `joint_linear`,
`added_linear`.

The values are those of the usual layers: the same products, sums in fp32, results in bf16.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


def joint_linear(x: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """What each of these layers makes of `x`, by one product where that is possible."""
    if not all(is_plain(layer) and takes(x, layer) for layer in layers):
        return tuple(layer(x) for layer in layers)
    rows = narrowed(x).flatten(0, -2)
    outs: tuple[Tensor, ...] = _JointLinear.apply(rows, *(layer.weight.to(rows.dtype) for layer in layers))  # type: ignore[no-untyped-call]
    return tuple(out.view(*x.shape[:-1], -1) for out in outs)


def added_linear(x: Tensor, layer: nn.Linear, states: Tensor) -> Tensor:
    """`states + layer(x)`, by one product where that is possible."""
    if not (is_plain(layer) and takes(x, layer) and fits_sum(states)):
        out: Tensor = states + layer(x)
        return out
    rows = narrowed(x).flatten(0, -2)
    out = _AddedLinear.apply(rows, layer.weight.to(rows.dtype), states.flatten(0, -2))  # type: ignore[no-untyped-call]
    return out.view(states.shape)


def fits_sum(states: Tensor) -> bool:
    """Whether a product in bf16 may be added to these without making them less exact."""
    return states.dtype == torch.bfloat16 and not isinstance(states, DTensor)


def is_plain(layer: nn.Linear) -> bool:
    """Whether nothing but its weight makes what comes out of it."""
    hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    return type(layer) in (nn.Linear, FastLinear) and not hooks and layer.bias is None


def takes(x: Tensor, layer: nn.Linear) -> bool:
    """Whether this layer's products with `x` would be in bf16, on a GPU, and of a weight that is here as a whole."""
    if not x.is_cuda or x.dim() < 2 or isinstance(layer.weight, DTensor):
        return False
    return (torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype) == torch.bfloat16


def multiply(a: Tensor, b: Tensor, *, added: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """`a @ b`, of matrices or transposes of them, plus `added`."""
    if cublaslt.usable(a, b) and (added is None or cublaslt.usable(added, b)):
        return cublaslt.multiply(a, b, added=added, out=out)
    return torch.mm(a, b, out=out) if added is None else torch.addmm(added, a, b, out=out)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        out: Tensor = torch.ops.windlass.product(x, weight.t())
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        return _linear_gradients(gradients[0].contiguous(), *ctx.saved_tensors, needed=ctx.needs_input_grad)


class _AddedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, states: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        out: Tensor = torch.ops.windlass.product(x, weight.t(), states)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradients[0].contiguous()
        return *_linear_gradients(gradient, *ctx.saved_tensors, needed=ctx.needs_input_grad[:2]), gradient


def _linear_gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, *, needed: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    by_x, by_weight = needed
    d_x = torch.ops.windlass.product(gradient, weight) if by_x else None
    d_weight = torch.ops.windlass.product(gradient.t(), x) if by_weight else None
    return d_x, d_weight


class _JointLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, *weights)
        out: Tensor = torch.ops.windlass.product(x, torch.cat(weights).t())
        return torch.split(out, [len(weight) for weight in weights], dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        x, *weights = ctx.saved_tensors
        whole = [gradient.contiguous() for gradient in gradients]
        d_x, d_weight = torch.ops.windlass.joint_gradients(x, weights, whole)
        return d_x, *torch.split(d_weight, [len(weight) for weight in weights])


# As operators, which torch's compiler takes as they are.


@torch.library.custom_op(
    "windlass::product", mutates_args=(), schema="(Tensor a, Tensor b, Tensor? added=None) -> Tensor"
)
def _product(a: Tensor, b: Tensor, added: Tensor | None = None) -> Tensor:
    return multiply(a, b, added=added)


@_product.register_fake
def _(a: Tensor, b: Tensor, added: Tensor | None = None) -> Tensor:  # noqa: ARG001
    return a.new_empty(a.shape[0], b.shape[1])


@torch.library.custom_op(
    "windlass::joint_gradients",
    mutates_args=(),
    schema="(Tensor x, Tensor[] weights, Tensor[] gradients) -> (Tensor, Tensor)",
)
def _joint_gradients(x: Tensor, weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    if all(cublaslt.usable(x, part) for part in (*weights, *gradients)):
        return cublaslt.joint_gradients(x.contiguous(), weights, gradients)
    gradient = torch.cat(list(gradients), dim=1)
    return gradient @ torch.cat(list(weights)), gradient.t() @ x


@_joint_gradients.register_fake
def _(x: Tensor, weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return x.new_empty(x.shape), x.new_empty(sum(len(weight) for weight in weights), x.shape[1])
