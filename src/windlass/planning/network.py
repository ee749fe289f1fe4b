"""How long processes talk: collectives within `tensor`, `shard` and `data`, and a pipeline's messages.

Ranks lie as the mesh says, `tensor` fastest, so its processes are neighbours in a node and a pipeline's are far apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from windlass.core.plan import Plan, Precision, Recompute
from windlass.planning.facts import ClusterFacts, Transformer
from windlass.planning.memory import product_bytes
from windlass.planning.software import Software

# Of a link's bandwidth, what collectives of megabytes reach.
COLLECTIVES = 0.75
# A step of a ring: each of its members adds one.
HOP_S = 4e-6
# Whole gradients are reduced in pieces of this size, as DDP does.
BUCKET_BYTES = 25e6
_REDUCED = 4  # bytes of a gradient on the wire
# Between a GPU and its host, in each direction: PCIe 4, as measured.
HOST_LINK = 24e9
_HELD = 4  # bytes of a parameter or gradient in the host's memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Processes that talk to each other: how many, how many of them in one node, and the bandwidth of each."""

    size: int
    bandwidth: float

    def gather_s(self, size_bytes: float, times: int = 1) -> float:
        """All-gather or reduce-scatter of so many bytes in all, in `times` pieces."""
        if self.size == 1:
            return 0.0
        wire = size_bytes * (self.size - 1) / self.size / (self.bandwidth * COLLECTIVES)
        return wire + times * (self.size - 1) * HOP_S

    def reduce_s(self, size_bytes: float, times: int = 1) -> float:
        """All-reduce: a reduce-scatter and an all-gather."""
        return 2 * self.gather_s(size_bytes, times)


def group_of(cluster: ClusterFacts, size: int, stride: int) -> Group:
    """Of every `stride`-th rank. One that spans nodes has as many network cards as members in a node."""
    gpu = cluster.gpu
    if size * stride <= cluster.per_node:
        return Group(size=size, bandwidth=gpu.within_node)
    together = max(1, min(size, cluster.per_node // stride))
    # Alone in its node a process uses its own card; together they use all of theirs, if the links within allow it.
    between = cluster.between_nodes * together
    return Group(size=size, bandwidth=min(gpu.within_node, between) if together > 1 else between)


def tensor_s(cluster: ClusterFacts, plan: Plan, model: Transformer, tokens: float, software: Software) -> float:
    """Of one block and microbatch: two sums in each direction, or with `sequence` as many gathers and scatters."""
    if plan.tensor == 1:
        return 0.0
    sums = 6 if plan.activation_checkpoint is Recompute.FULL else 4
    group = group_of(cluster, plan.tensor, 1)
    seconds = sums * group.reduce_s(tokens * model.width * product_bytes(plan.precision))
    return seconds * (1 - software.hidden_sums)


def pipeline_s(cluster: ClusterFacts, plan: Plan, model: Transformer, tokens: float, software: Software) -> float:
    """Of one microbatch: what a process sends on, forward and backward, for each of its stages."""
    if plan.pipeline == 1:
        return 0.0
    stride = plan.copies * plan.tensor
    near = plan.pipeline * stride <= cluster.per_node
    bandwidth = cluster.gpu.within_node if near else cluster.between_nodes
    divided = plan.sequence or software.scattered_messages
    size = tokens * model.width * product_bytes(plan.precision) / (plan.tensor if divided else 1)
    chunks = plan.total_stages // plan.pipeline
    return 2 * chunks * (size / (bandwidth * COLLECTIVES) + HOP_S)


def host_s(plan: Plan, parameters: float) -> float:
    """With `offload`: own parts of parameters go to the GPU before they are gathered, those of gradients come back. Of
    a whole step; nothing is beside it, since each block waits for its own."""
    if not plan.offload:
        return 0.0
    fetched = 2 * plan.accumulate if plan.zero == 3 else 1
    returned = 1 if plan.zero == 1 else plan.accumulate
    return (fetched + returned) * _HELD * parameters / plan.shard / HOST_LINK


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What `data` and `shard` send, by the pass that it goes on beside. Seconds."""

    forward: float = 0.0  # every forward pass
    backward: float = 0.0  # every backward pass
    first_forward: float = 0.0  # only the first one of a step, and besides
    last_backward: float = 0.0  # only the last one


def exchange(cluster: ClusterFacts, plan: Plan, parameters: float, units: int, software: Software) -> Exchange:
    """For this process's `parameters` in `units` that are sent one by one."""
    shard = group_of(cluster, plan.shard, plan.tensor)
    data = group_of(cluster, plan.data or 1, plan.tensor * plan.shard)
    low = product_bytes(plan.precision) if plan.precision is not Precision.FP8 else 1
    reduced = product_bytes(plan.precision) if software.low_precision_gradients else _REDUCED
    gather = shard.gather_s(low * parameters, units)
    scatter = shard.gather_s(reduced * parameters, units)
    if plan.shard == 1:
        size = reduced * parameters
        return Exchange(last_backward=data.reduce_s(size, max(1, round(size / BUCKET_BYTES))))
    copies = data.reduce_s(reduced * parameters / plan.shard, units)
    if plan.zero == 1:
        return Exchange(first_forward=gather, last_backward=scatter + copies)
    if plan.zero == 2:
        return Exchange(backward=scatter, first_forward=gather, last_backward=copies)
    return Exchange(forward=gather, backward=gather + scatter, last_backward=copies)
