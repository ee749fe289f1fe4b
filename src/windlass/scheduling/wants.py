"""The ways in which a run could be placed, from what it asks for: the one that it likes most first. Pure."""

from __future__ import annotations

from functools import lru_cache

from windlass.core.resources import Resources
from windlass.scheduling.core.types import Want


@lru_cache(maxsize=1 << 14)  # runs that ask for the same share one object, by which the scheduler knows them as alike
def wants_of(
    resources: Resources, *, engines: frozenset[str] | None, most_nodes: int | None = None
) -> tuple[Want, ...]:
    """`engines`: the only ones it may go to; `most_nodes`: of an elastic run, `resources.nodes` being its least.

    The type of GPU counts for more than their number: of a list and a range, all of the range is tried with the first.
    """
    return tuple(
        Want(
            gpus=gpus,
            gpu_type=gpu_type,
            cpus=resources.cpus,
            memory_bytes=resources.memory_bytes,
            nodes=resources.nodes,
            most_nodes=most_nodes,
            engines=engines,
            labels=resources.labels,
            spot_ok=resources.spot_ok,
        )
        for gpu_type in resources.types
        for gpus in resources.amounts
    )
