"""Low precision: the types that a plan computes with, and the loss scale that keeps fp16 gradients above zero."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from windlass.core.plan import InvalidPlan, Plan, Precision
from windlass.job.fp8 import has_layers

_FIRST_SCALE = 2.0**16
_GROW_AFTER = 2000  # steps without an overflow
_LARGEST_SCALE = 2.0**24


def compute_dtype(precision: Precision) -> torch.dtype | None:
    """The type of products, or of all but those in 8 bits; None where it is that of the parameters."""
    match precision:
        case Precision.FP32:
            return None
        case Precision.FP16:
            return torch.float16
        case Precision.BF16 | Precision.FP8:
            return torch.bfloat16


def autocast(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    dtype = compute_dtype(precision)
    return contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def check_precision(plan: Plan, blocks: Iterable[nn.Module], device: torch.device) -> None:
    """InvalidPlan where the device has no such arithmetic, or nothing in the model's blocks would use it."""
    if plan.precision is not Precision.FP8:
        return
    if not has_layers(blocks):
        raise InvalidPlan(
            "precision=fp8 is for linear layers in a model's repeated blocks, with sizes that 16 divides, and this "
            "model has none; options: bf16, fp16, fp32"
        )
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9):
        return
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"
    raise InvalidPlan(
        f"precision=fp8 needs a GPU with 8-bit products (Ada, Hopper or later), and this process has {name}; "
        "options: bf16, fp16, fp32"
    )


@dataclass(slots=True, kw_only=True)
class LossScale:
    """What the loss is multiplied by before the backward pass. Halved by an overflow, doubled after many good steps."""

    value: float = _FIRST_SCALE
    good_steps: int = 0
    uses: int = field(default=0, compare=False)  # backward passes that it was on
    used: float = field(default=1.0, compare=False)  # what it was in the last of them

    def use(self) -> None:
        """It is on the backward pass that begins. Others, of losses that a loop makes itself, do without."""
        self.uses += 1
        self.used = self.value

    def update(self, *, overflow: bool) -> None:
        if overflow:
            self.value = max(1.0, self.value / 2)
            self.good_steps = 0
            return
        self.good_steps += 1
        if self.good_steps >= _GROW_AFTER:
            self.value = min(_LARGEST_SCALE, self.value * 2)
            self.good_steps = 0
