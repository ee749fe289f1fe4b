"""How a model may be divided: `Split`, which a model says of itself once, as a method `split()`.

Names are dotted paths in which `*` stands for one part, as in `blocks.*.attention.out`. A model that says
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
    """What becomes of one module under tensor parallelism; of NORM and SUMMED also of a parameter by itself."""

    COLUMN = "column"  # a linear layer: each process computes a part of the outputs
    ROW = "row"  # a linear layer: each process takes a part of the inputs; the results are summed
    VOCABULARY = "vocabulary"  # an embedding: each process holds a part of the rows
    NORM = "norm"  # works on single positions, so with `sequence` on a part of the sequence; whole on each process
    # Whole on each process, which uses it on its own heads: gradients are summed. As norms of queries and keys.
    SUMMED = "summed"
    HEAD = "head"  # the last linear layer: each process computes a part of the vocabulary's logits


# What can be said of a parameter by itself, too: the others say how a product is made.
OF_PARAMETERS = frozenset((Cut.NORM, Cut.SUMMED))


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    tensor: Mapping[str, Cut] = field(default_factory=dict)
    # A ModuleDict or ModuleList of repeated layers, each taking and returning one tensor. They are the units of
    # sharding, of recomputing, of compiling, and what a pipeline is cut between.
    blocks: str | None = None
    # Modules and parameters before the blocks: only a pipeline's first stage has them, others have None.
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()  # those after them: only its last stage has them
    shape: ModelShape = field(default_factory=ModelShape)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensor", {name: _cut(name, value) for name, value in self.tensor.items()})
        for what in ("first", "last"):
            names = getattr(self, what)
            if isinstance(names, str):  # its letters would be taken for names
                raise InvalidPlan(f"{what}={names!r} in split() is a text, but must be a tuple of names: ({names!r},)")
        for name in self.first:
            if name in self.last:  # no stage would have it
                raise InvalidPlan(
                    f"{name!r} is in first and in last of split(); name it in one of them, or in none: what is in "
                    "none is in all stages"
                )


def _cut(name: str, value: Any) -> Cut:
    try:
        return Cut(value)
    except ValueError:
        known = ", ".join(f"job.Cut.{cut.name}" for cut in Cut)
        said = unknown("cut", value, Cut) if isinstance(value, str) else f"{value!r} is no cut; known: {known}"
        raise InvalidPlan(f"split() wants to cut {name!r}: {said}") from None
