"""How a model may be divided: `Split`, which a model says of itself once, as a method `split()`.

Names of modules are dotted paths in which `*` stands for one part, as in `blocks.*.attention.out`. A model that says
nothing can be copied (`data`) and its state divided (`shard`), which needs no knowledge of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from windlass.core.names import unknown
from windlass.core.plan import InvalidPlan, ModelShape


class Cut(StrEnum):
    """What becomes of one module under tensor parallelism."""

    COLUMN = "column"  # a linear layer: each process computes a part of the outputs
    ROW = "row"  # a linear layer: each process takes a part of the inputs; the results are summed
    VOCABULARY = "vocabulary"  # an embedding: each process holds a part of the rows
    NORM = "norm"  # works on single positions, so with `sequence` on a part of the sequence
    HEAD = "head"  # the last linear layer: each process computes a part of the vocabulary's logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    tensor: Mapping[str, Cut] = field(default_factory=dict)
    # A ModuleDict or ModuleList of repeated layers, each taking and returning one tensor. They are the units of
    # sharding, of recomputing, of compiling, and what a pipeline is cut between.
    blocks: str | None = None
    first: tuple[str, ...] = ()  # modules before the blocks: only a pipeline's first stage has them, others have None
    last: tuple[str, ...] = ()  # modules after them: only its last stage has them
    shape: ModelShape = field(default_factory=ModelShape)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensor", {name: _cut(name, value) for name, value in self.tensor.items()})
        for what in ("first", "last"):
            names = getattr(self, what)
            if isinstance(names, str):  # its letters would be taken for names
                raise InvalidPlan(f"{what}={names!r} in split() is a text, but must be a tuple of names: ({names!r},)")


def _cut(name: str, value: Any) -> Cut:
    try:
        return Cut(value)
    except ValueError:
        known = ", ".join(f"job.Cut.{cut.name}" for cut in Cut)
        said = unknown("cut", value, Cut) if isinstance(value, str) else f"{value!r} is no cut; known: {known}"
        raise InvalidPlan(f"split() wants to cut {name!r}: {said}") from None
