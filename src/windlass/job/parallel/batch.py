"""A batch as a step takes it: a tensor, or tuples, lists and mappings of tensors, each cut along its first dimension.

What is no tensor, or a tensor without a dimension, goes to every microbatch as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from windlass.core.plan import InvalidPlan


def tensors_of(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in it, under a name as it would be written: `inputs['ids']`."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from tensors_of(part, f"{name}[{key!r}]")
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from tensors_of(part, f"{name}[{number}]")


def rows_of(inputs: Any, targets: Any) -> int:
    """How many samples it has; 0 where nothing tells."""
    sizes = (t.shape[0] for value in (inputs, targets) for _, t in tensors_of(value, "") if t.dim())
    return next(sizes, 0)


def check_rows(inputs: Any, targets: Any, accumulate: int) -> None:
    """InvalidPlan unless it can be cut into so many microbatches."""
    if accumulate == 1:
        return
    for what, value in (("inputs", inputs), ("targets", targets)):
        for name, tensor in tensors_of(value, what):
            if tensor.dim() and tensor.shape[0] % accumulate:
                raise InvalidPlan(
                    f"the {name} of this process have {tensor.shape[0]} samples, which accumulate={accumulate} does "
                    "not divide"
                )


def cut(value: Any, count: int) -> list[Any]:
    """In so many microbatches."""
    if count == 1:
        return [value]
    if isinstance(value, Tensor) and value.dim():
        return list(value.chunk(count))
    if isinstance(value, Mapping):
        parts = {key: cut(part, count) for key, part in value.items()}
        return [{key: part[number] for key, part in parts.items()} for number in range(count)]
    if isinstance(value, list | tuple):
        columns = [cut(part, count) for part in value]
        rows = [[column[number] for column in columns] for number in range(count)]
        return [type(value)(*row) if hasattr(value, "_fields") else type(value)(row) for row in rows]
    return [value] * count
