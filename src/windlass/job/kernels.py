"""What torch does not do in one pass over memory, written in Triton. Imported on GPUs only, where Triton is.

Each function has a twin in plain torch beside its caller, for everywhere else and for the tests.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: N803 - constants of a kernel are written like constants

_COLUMNS_AT_ONCE = 4096
_ELEMENTS_AT_ONCE = 2048
_WARPS = 8


def cross_entropy_(logits: Tensor, targets: Tensor, ignore: int) -> Tensor:
    """The loss of every row, and the rows' gradients in place of the logits. Those of ignored targets are zero."""
    rows, columns = logits.shape
    losses = torch.empty(rows, device=logits.device, dtype=torch.float32)
    _cross_entropy[(rows,)](
        *(logits, targets, losses, columns, logits.stride(0), ignore), BLOCK=_COLUMNS_AT_ONCE, num_warps=_WARPS
    )
    return losses


@triton.jit
def _cross_entropy(logits, targets, losses, columns, stride, ignore, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row)
    counted = target != ignore
    target = tl.where(counted, target, 0)
    at = tl.arange(0, BLOCK)
    # Largest value and sum in one pass: the sum so far is made smaller whenever a larger value turns up.
    largest = -float("inf")
    total = 0.0
    for start in range(0, columns, BLOCK):
        x = tl.load(logits + start + at, mask=start + at < columns, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(largest, tl.max(x))
        total = total * tl.exp(largest - higher) + tl.sum(tl.exp(x - higher))
        largest = higher
    log_sum = largest + tl.log(total)
    loss = log_sum - tl.load(logits + target).to(tl.float32)
    tl.store(losses + row, tl.where(counted, loss, 0.0))
    tl.debug_barrier()  # nobody overwrites what another thread has yet to read
    scale = tl.where(counted, 1.0, 0.0)
    # The row is still in the cache, so this pass costs the writing only.
    for start in range(0, columns, BLOCK):
        inside = start + at < columns
        x = tl.load(logits + start + at, mask=inside, other=-float("inf")).to(tl.float32)
        gradient = tl.exp(x - log_sum) - tl.where(start + at == target, 1.0, 0.0)
        tl.store(logits + start + at, (gradient * scale).to(logits.dtype.element_ty), mask=inside)


def adamw_(
    *,
    wide: Tensor,
    narrow: Tensor | None,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    factor: Tensor,
    numbers: dict[str, float],
) -> None:
    """One step of AdamW on one parameter; `narrow` is the copy of it that the model computes with."""
    size = wide.numel()
    _adamw[(triton.cdiv(size, _ELEMENTS_AT_ONCE),)](
        *(wide, wide if narrow is None else narrow, gradient, mean, square, factor, size),
        **numbers,
        COPY=narrow is not None,
        BLOCK=_ELEMENTS_AT_ONCE,
        num_warps=_WARPS,
    )


@triton.jit
def _adamw(
    wide,
    narrow,
    gradient,
    mean,
    square,
    factor,
    size,
    lr,
    beta1,
    beta2,
    eps,
    shrink,
    unbias1,
    unbias2,
    COPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    g = tl.load(gradient + at, mask=inside).to(tl.float32) * tl.load(factor)
    m = tl.load(mean + at, mask=inside)
    v = tl.load(square + at, mask=inside)
    p = tl.load(wide + at, mask=inside)
    m += (g - m) * (1 - beta1)
    v = v * beta2 + g * g * (1 - beta2)
    p = p * shrink - lr * (m * unbias1) / (tl.sqrt(v * unbias2) + eps)
    tl.store(mean + at, m, mask=inside)
    tl.store(square + at, v, mask=inside)
    tl.store(wide + at, p, mask=inside)
    if COPY:
        tl.store(narrow + at, p.to(narrow.dtype.element_ty), mask=inside)
