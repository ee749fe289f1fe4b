"""Activation checkpointing: what the backward pass computes again instead of keeping it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from windlass.core.plan import InvalidPlan, Plan, Recompute


def check_recompute(plan: Plan, blocks: Iterable[nn.Module]) -> None:
    """InvalidPlan for a model without blocks: nothing would be computed again."""
    if plan.activation_checkpoint is not Recompute.NONE and not any(True for _ in blocks):
        raise InvalidPlan(
            f"activation_checkpoint={plan.activation_checkpoint} is for a model's repeated blocks, and this model has "
            "none: no list of several layers of one class, and no `split()` that names its blocks; "
            "options: activation_checkpoint=none"
        )


def apply_recompute(blocks: Iterable[nn.Module], mode: Recompute) -> None:
    """Make each block forget what happened inside it. Its class, its names and its parameters stay as they are."""
    if mode is Recompute.NONE:
        return
    context: dict[str, Any] = {"context_fn": _selective} if mode is Recompute.SELECTIVE else {}
    for block in blocks:
        forward: Callable[..., Any] = block.forward
        block.forward = functools.partial(checkpoint, forward, use_reentrant=False, **context)


def _selective() -> Any:
    return create_selective_checkpoint_contexts(_decide)  # type: ignore[no-untyped-call]


def _decide(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in _kept() else CheckpointPolicy.PREFER_RECOMPUTE


@functools.cache
def _kept() -> frozenset[Any]:
    """Products and attention, which cost the most for the bytes they leave, and what came over the network."""
    names = (
        ("aten", "mm"),
        ("aten", "addmm"),
        ("aten", "bmm"),
        ("aten", "_scaled_mm"),
        ("windlass", "product"),
        ("aten", "_scaled_dot_product_efficient_attention"),
        ("aten", "_scaled_dot_product_flash_attention"),
        ("aten", "_scaled_dot_product_flash_attention_for_cpu"),
        ("aten", "_scaled_dot_product_cudnn_attention"),
        ("_c10d_functional", "reduce_scatter_tensor"),
        ("_c10d_functional", "all_reduce"),
    )
    spaces = {space: getattr(torch.ops, space) for space, _ in names}
    # Not every build has all of them.
    return frozenset(getattr(spaces[s], name).default for s, name in names if hasattr(spaces[s], name))
