"""The repeated layers of a model: what is sharded, recomputed and compiled one by one."""

from __future__ import annotations

from torch import nn

from windlass.job.parallel.split import Split


def split_of(model: nn.Module) -> Split:
    """What the model says of itself; an empty table where it says nothing."""
    describe = getattr(model, "split", None)
    split = describe() if callable(describe) else None
    return split if isinstance(split, Split) else Split()


def blocks_of(part: nn.Module, split: Split) -> list[nn.Module]:
    """The model's blocks, or what looks like them: the outermost lists of several layers of one class."""
    if split.blocks is not None:
        return list(part.get_submodule(split.blocks).children())
    return _repeated(part)


def _repeated(module: nn.Module) -> list[nn.Module]:
    found: list[nn.Module] = []
    for child in module.children():
        layers = list(child.children()) if isinstance(child, nn.ModuleList | nn.ModuleDict | nn.Sequential) else []
        if (
            len(layers) > 1
            and len({type(layer) for layer in layers}) == 1
            and any(True for _ in layers[0].parameters())
        ):
            found.extend(layers)
        else:
            found.extend(_repeated(child))
    return found
