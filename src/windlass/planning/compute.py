"""How long one GPU computes on a microbatch: products by their sizes, attention, and the traffic between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from windlass.core.plan import Plan, Precision, Recompute
from windlass.planning.facts import Transformer
from windlass.planning.gpus import Gpu
from windlass.planning.memory import layers_per_process, product_bytes
from windlass.planning.software import Software

# A product whose side is this long reaches half of what a long one does: GPUs work in tiles of 128 and 256.
HALF_SIDE = 110
# Flash attention reaches this share of what large products do: softmax takes turns with the products.
ATTENTION = 0.6
# Products in 8 bits reach a smaller share of their peak: values are scaled and cast on the way in.
FP8 = 0.77
# Of the memory's bandwidth, what streaming kernels reach.
STREAMING = 0.8
# Values read and written per position between products, forward and backward: by two norms, two residual sums and the
# rotary embedding in units of the width; by the activation function in units of the inner width.
WIDTH_VALUES, INNER_VALUES = 26, 8
# ... without `compile`: norms and rotary embedding are a dozen kernels each, with 32-bit values between them.
EAGER = 3.5
# Bytes per logit: written, read for the loss and its gradient, which is written; not compiled, by way of 32-bit copies.
LOGIT_TRAFFIC, EAGER_LOGIT_TRAFFIC = 12, 40
# Unfused attention: bytes per score, forward and backward.
SCORE_TRAFFIC = 32
# Launching a block's kernels, forward and backward: about 60 when compiled, 150 when not, 6 microseconds each.
LAUNCH_S, EAGER_LAUNCH_S = 0.36e-3, 0.9e-3
# ... and gathering a divided block's parameters and reducing its gradients, in Python.
SHARD_LAUNCH_S = 0.5e-3
# AdamW on divided state: parameter, gradient and two moments read, three of them written, the norm read once more.
OPTIMIZER_TRAFFIC = 34
# With `offload` the optimizer works in the host's memory, which the GPUs of a node share: bytes a second for each.
HOST_BANDWIDTH = 20e9
_FORWARD, _BACKWARD = 1, 2
_FLASH_PASSES = 3.5  # the backward pass computes the scores again
_CAUSAL = 0.5  # flash attention leaves out what the mask hides


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A GPU with the plan's precision and the software's habits: seconds for FLOPs and bytes."""

    gpu: Gpu
    plan: Plan
    software: Software

    def product_s(self, rows: float, inner: float, columns: float, *, passes: float = 1, low: bool = True) -> float:
        """`low`: in 8 bits if the plan says so. `passes`: how often, with the two of the backward pass."""
        sides = 1.0
        for side in (rows, inner, columns):
            sides *= side / (side + HALF_SIDE)
        return 2 * rows * inner * columns * passes / (self.flops(low=low) * sides)

    def flops(self, *, low: bool = True) -> float:
        """Sustained by large products, a second."""
        precision = self.plan.precision
        if precision is Precision.FP8 and not low:
            precision = Precision.BF16
        peak = self.gpu.teraflops(precision) or 0.0
        share = FP8 if precision is Precision.FP8 else 1.0
        return peak * 1e12 * self.gpu.sustained * self.software.flops * share

    def traffic_s(self, size_bytes: float) -> float:
        return size_bytes / (self.gpu.memory_bandwidth * STREAMING)

    @property
    def fused(self) -> bool:
        fused = self.software.fused_elementwise
        return self.plan.compile if fused is None else fused


def block_s(machine: Machine, model: Transformer, microbatch: int) -> float:
    """Forward and backward of one block, with what is computed twice."""
    tokens = microbatch * model.sequence
    again = _again(machine.plan, machine.software)
    shapes = tuple(_products(machine.plan, model))
    # The parameter count is what is certain: a shape that was made up for it is scaled to it.
    scale = model.block_parameters / machine.plan.tensor / sum(inner * columns for inner, columns in shapes)
    passes = (_FORWARD + _BACKWARD + again.products) * scale
    products = sum(machine.product_s(tokens, inner, columns, passes=passes) for inner, columns in shapes)
    attention = _attention_s(machine, model, tokens, again.attention)
    between = machine.traffic_s(tokens * _traffic(machine, model) * (1 + again.between / 3))
    launch = LAUNCH_S if machine.fused else EAGER_LAUNCH_S
    launch += SHARD_LAUNCH_S if machine.plan.shard > 1 else 0.0
    return max(products + attention + between, launch)


def head_s(machine: Machine, model: Transformer, microbatch: int) -> float:
    """The product with the head, and the loss."""
    tokens = microbatch * model.sequence
    columns = model.vocabulary / machine.plan.tensor
    if not columns:
        return 0.0
    product = machine.product_s(tokens, model.width, columns, passes=_FORWARD + _BACKWARD, low=False)
    return product + machine.traffic_s(tokens * columns * (LOGIT_TRAFFIC if machine.fused else EAGER_LOGIT_TRAFFIC))


def optimizer_s(machine: Machine, parameters: float) -> float:
    """Of this process's layers: the step, on its part of them."""
    size = parameters / machine.plan.shard * OPTIMIZER_TRAFFIC
    return size / HOST_BANDWIDTH if machine.plan.offload else machine.traffic_s(size)


def microbatch_s(machine: Machine, model: Transformer, microbatch: int) -> float:
    """Of the slowest process of a pipeline, which is the last: it has the head."""
    layers = layers_per_process(machine.plan, model.layers)
    return layers * block_s(machine, model, microbatch) + head_s(machine, model, microbatch)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Again:
    """Shares of a forward pass that are computed a second time."""

    products: float = 0.0
    attention: float = 0.0
    between: float = 0.0


def _again(plan: Plan, software: Software) -> _Again:
    match plan.activation_checkpoint:
        case Recompute.FULL:
            return _Again(products=1.0, attention=1.0, between=1.0)
        case Recompute.SELECTIVE:
            return _Again(products=software.selective_products, between=1.0)
        case _:
            return _Again()


def _products(plan: Plan, model: Transformer) -> Iterator[tuple[float, float]]:
    """Inner sides and columns of a block's products on one process of `tensor`."""
    width, tensor = model.width, plan.tensor
    yield width, width * (1 + 2 * model.kv_heads / model.heads) / tensor
    yield width / tensor, width
    for _ in range(2 if model.gated else 1):
        yield width, model.inner / tensor
    yield model.inner / tensor, width


def _attention_s(machine: Machine, model: Transformer, tokens: float, again: float) -> float:
    width, sequence = model.width / machine.plan.tensor, model.sequence
    if machine.software.fused_attention:
        flops = 4 * tokens * sequence * width * _CAUSAL * (_FLASH_PASSES + again)
        return flops / (machine.flops(low=False) * ATTENTION)
    head = model.width / model.heads
    passes = (_FORWARD + _BACKWARD + again) * 2 * (width / head) * (tokens / sequence)
    scores = tokens * sequence * model.heads / machine.plan.tensor
    products = machine.product_s(sequence, head, sequence, passes=passes, low=False)
    return products + machine.traffic_s(scores * SCORE_TRAFFIC * (1 + again / 3))


def _traffic(machine: Machine, model: Transformer) -> float:
    """Bytes per position and block, forward and backward."""
    plan = machine.plan
    width = model.width / (plan.tensor if plan.sequence else 1)
    values = WIDTH_VALUES * width + INNER_VALUES * model.inner / plan.tensor
    return values * product_bytes(plan.precision) * (1.0 if machine.fused else EAGER)
