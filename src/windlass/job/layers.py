"""Other linear layers in the place of a model's own, and the type that they compute in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn


def replace_linears(
    blocks: Iterable[nn.Module], kind: type[nn.Linear], fits: Callable[[nn.Linear], bool] = lambda _: True
) -> None:
    """Make the linear layers in `blocks` that fit layers of this kind, with the same parameters and names."""
    for parent, name, layer in list(plain_linears(blocks, fits)):
        with torch.device("meta"):
            other = kind(layer.in_features, layer.out_features, bias=layer.bias is not None)
        other.weight, other.bias = layer.weight, layer.bias
        setattr(parent, name, other)


def plain_linears(
    blocks: Iterable[nn.Module], fits: Callable[[nn.Linear], bool]
) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """With the module that has each, and its name there."""
    for block in blocks:
        for parent in block.modules():
            for name, layer in parent.named_children():
                # Of this very class: what a subclass does with its weight is not known.
                if type(layer) is nn.Linear and fits(layer):
                    yield parent, name, layer


def narrowed(x: Tensor) -> Tensor:
    """In the type that autocast computes with, where that is on."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x
