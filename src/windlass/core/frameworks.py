"""Which framework a run trains with, told from what is started and from what its script imports. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import PurePath

from windlass.core.syntax import parse_source


class Framework(StrEnum):
    PYTORCH = "pytorch"
    JAX = "jax"
    TENSORFLOW = "tensorflow"
    XGBOOST = "xgboost"
    LIGHTNING = "lightning"
    ACCELERATE = "accelerate"
    TRANSFORMERS = "transformers"
    NONE = "none"  # said by the user: nothing of the kind


_LAUNCHERS = {
    "torchrun": Framework.PYTORCH,
    "torch.distributed.run": Framework.PYTORCH,
    "torch.distributed.launch": Framework.PYTORCH,
    "deepspeed": Framework.PYTORCH,
    "accelerate": Framework.ACCELERATE,
    "accelerate.commands.launch": Framework.ACCELERATE,
}
# What builds on others comes before what it builds on: a script that imports both trains with the former.
_IMPORTS = {
    "lightning": Framework.LIGHTNING,
    "pytorch_lightning": Framework.LIGHTNING,
    "accelerate": Framework.ACCELERATE,
    "transformers": Framework.TRANSFORMERS,
    "xgboost": Framework.XGBOOST,
    "tensorflow": Framework.TENSORFLOW,
    "jax": Framework.JAX,
    "flax": Framework.JAX,
    "torch": Framework.PYTORCH,
}


def detect_framework(argv: Sequence[str], source: bytes | None) -> Framework | None:
    """`source`: of the script that `argv` runs, where it can be read. None where nothing tells."""
    words = argv[2].split() if tuple(argv[:2]) == ("/bin/sh", "-c") else argv
    for word in words:
        if (found := _LAUNCHERS.get(PurePath(word).name)) is not None:
            return found
    imported = set(_imported(source)) if source is not None else set()
    return next((framework for module, framework in _IMPORTS.items() if module in imported), None)


def script_of(argv: Sequence[str]) -> str | None:
    """The first word that looks like a Python file: what `python`, `torchrun` and the like are told to run."""
    words = argv[2].split() if tuple(argv[:2]) == ("/bin/sh", "-c") else argv
    return next((word for word in words if word.endswith(".py")), None)


def _imported(source: bytes) -> Iterator[str]:
    if not any(module.encode() in source for module in _IMPORTS):
        return
    import ast  # long to load, and every submission waits for it

    if (tree := parse_source(source)) is None:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
