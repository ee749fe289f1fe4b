"""What a model says of itself, and its repeated layers: what is sharded, recomputed and compiled one by one."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator

from torch import nn

from windlass.core.names import nearest
from windlass.core.plan import InvalidPlan
from windlass.job.parallel.split import OF_PARAMETERS, Split

_MOST_SHOWN = 12


def split_of(model: nn.Module) -> Split:
    """What the model says of itself, if anything. InvalidPlan if it names what is not there."""
    describe = getattr(model, "split", None)
    split = describe() if callable(describe) else None
    if not isinstance(split, Split):
        return Split()
    _check_names(model, split)
    return split


def matching(names: Iterable[str], pattern: str) -> Iterator[str]:
    """The dotted paths that a pattern stands for: `*` is one part of the path, so it matches no dot."""
    depth = pattern.count(".")
    return (name for name in names if name.count(".") == depth and fnmatch.fnmatchcase(name, pattern))


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
            and _is_called(layers[0])
        ):
            found.extend(layers)
        else:
            found.extend(_repeated(child))
    return found


def _is_called(layer: nn.Module) -> bool:
    """Lists of parameters or of lists are read, and tables in a list often are (`embedding.weight`): what is only put
    together when it is called would not be there."""
    return type(layer).forward is not nn.Module.forward and not isinstance(layer, nn.Embedding | nn.EmbeddingBag)


def _check_names(model: nn.Module, split: Split) -> None:
    """A name that nothing has would be cut nowhere, or left in all stages: another model, without a word."""
    names = _names(model)
    with_parameters = [*names, *parameter_names(model)]
    kind = type(model).__name__
    for pattern, cut in split.tensor.items():
        known = with_parameters if cut in OF_PARAMETERS else names
        if not any(matching(known, pattern)):
            _refuse(f"split() of {kind} wants to cut {pattern!r}", pattern, _patterns(known))
    for what in ("first", "last"):
        for name in getattr(split, what):
            if name not in with_parameters:
                _refuse(f"split() of {kind} has {name!r} in {what!r}", name, with_parameters)
    if split.blocks is not None and split.blocks not in names:
        _refuse(f"split() of {kind} says blocks={split.blocks!r}", split.blocks, names)


def parameter_names(model: nn.Module) -> list[str]:
    """The paths of all parameters, also of those that are None here. One that modules share has several."""
    return [f"{path}.{name}" if path else name for path, module in model.named_modules() for name in module._parameters]


def _names(model: nn.Module) -> list[str]:
    """The paths of all modules, and of parts that are None here: a model may go without some."""
    return [
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name in (
            *module._modules,
            *(name for name, value in vars(module).items() if value is None and name[0] != "_"),
        )
    ]


def _patterns(names: Iterable[str]) -> list[str]:
    """As they would be written in a table: with `*` for the numbers of layers."""
    paths = (name.split(".") for name in names)
    return list(
        dict.fromkeys(".".join([*("*" if p.isdecimal() else p for p in path[:-1]), path[-1]]) for path in paths)
    )


def _refuse(what: str, wrong: str, known: Iterable[str]) -> None:
    options = [name for name in known if name.count(".") == wrong.count(".")]
    guess = nearest(wrong, options)
    shown = ", ".join(options[:_MOST_SHOWN]) + (", ..." if len(options) > _MOST_SHOWN else "")
    raise InvalidPlan(
        f"{what}, and no module has that name; "
        + (f"did you mean {guess!r}?" if guess else f"known: {shown or 'none'}")
    )
