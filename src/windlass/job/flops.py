"""How much arithmetic a training step is, and how much the device could do: what MFU is made of.

The convention is that of PaLM's and nanoGPT's MFU: six operations per parameter and token, twelve per layer, width and
position of attention, and none for what is computed a second time.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from windlass.core.errors import InvalidInput
from windlass.core.plan import Precision
from windlass.planning.gpus import find_gpu


def training_flops_per_token(parameters: int, *, layers: int = 0, width: int = 0, sequence: int = 0) -> float:
    """Forward and backward: products with each parameter, and of queries with keys and weights with values."""
    return 6.0 * parameters + 12.0 * layers * width * sequence


def multiplied_parameters(modules: Iterable[nn.Module]) -> int:
    """Parameters that inputs are multiplied with: all but tables that are only looked up in.

    A table whose weight is also the head's (tied) is multiplied with. Divided tensors count whole, shared ones once.
    """
    parts = [part for module in modules for part in module.modules() if not isinstance(part, nn.Embedding)]
    counted = {id(parameter): parameter.numel() for part in parts for parameter in part.parameters(recurse=False)}
    return sum(counted.values())


def flops_per_token_of(modules: Iterable[nn.Module]) -> float:
    """By the model's own word (a method `flops_per_token()`), else from its parameters alone."""
    modules = list(modules)
    if len(modules) == 1 and callable(own := getattr(modules[0], "flops_per_token", None)):
        return float(own())
    return training_flops_per_token(multiplied_parameters(modules))


def peak_flops(device: torch.device, precision: Precision) -> float | None:
    """What the device can do a second at most, without sparsity; None where that is not known, as on a CPU."""
    if device.type != "cuda":
        return None
    return peak_of(torch.cuda.get_device_name(device), precision)


def peak_of(name: str, precision: Precision) -> float | None:
    try:
        gpu = find_gpu(name)
    except InvalidInput:
        return None
    tera = gpu.teraflops(precision)
    if precision is Precision.FP32 and gpu.bf16 and torch.get_float32_matmul_precision() != "highest":
        tera = gpu.bf16 / 2  # as tf32, which the program has allowed
    return tera * 1e12 if tera else None
