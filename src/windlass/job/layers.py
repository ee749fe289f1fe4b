"""Other linear layers in the place of a model's own, and the type that they compute in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn


def replace_linears(
    blocks: Iterable[nn.Module], kind: type[nn.Linear], fits: Callable[[nn.Linear], bool] = lambda _: True
) -> None:
    """Make the linear layers in `blocks` that fit layers of this kind, which may add no state. They stay the same
    objects, with their parameters, names and hooks: tensor parallelism works by those."""
    for layer in list(plain_linears(blocks, fits)):
        layer.__class__ = kind


def plain_linears(blocks: Iterable[nn.Module], fits: Callable[[nn.Linear], bool]) -> Iterator[nn.Linear]:
    for block in blocks:
        for layer in block.modules():
            # Of this very class: what a subclass does with its weight is not known.
            if type(layer) is nn.Linear and fits(layer):
                yield layer


def narrowed(x: Tensor) -> Tensor:
    """In the type that autocast computes with, where that is on."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x
