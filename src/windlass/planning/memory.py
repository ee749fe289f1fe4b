"""How much memory a GPU needs under a plan: the model's state, and what a step keeps until its backward pass.

State is what `windlass.job` holds: parameters, gradients and two Adam moments in 32 bits, divided as the plan says,
and a copy of the parameters in the precision of the products while these are made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from windlass.core.plan import Plan, Precision, Recompute, Schedule
from windlass.planning.facts import ModelFacts, Transformer
from windlass.planning.gpus import Gpu
from windlass.planning.software import WINDLASS, Software

# What nobody allocates: the CUDA context, libraries' workspaces, NCCL's buffers.
RESERVED_BYTES = 2.5e9
# The allocator's pieces that fit nothing: between 2% and 8% is usual with expandable segments.
FRAGMENTATION = 0.06
# Blocks whose parameters are whole at a time under zero=3: the one at work and the one being fetched.
WHOLE_BLOCKS = 2
# Logits in 16 bits, their 32-bit copy, its logarithm of the softmax, and the gradient: in 16 bits where compiled.
LOGIT_BYTES, EAGER_LOGIT_BYTES = 12, 14
# Where nothing is known about what a step keeps, it gets this share of the memory.
UNKNOWN_ACTIVATIONS = 0.4
_MASTER, _GRADIENT, _MOMENTS = 4, 4, 8
_SCORE_BYTES = 5  # unfused attention keeps softmax, dropped-out softmax and the mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on the fullest GPU."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    loss: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer + self.activations + self.loss


def budget(gpu: Gpu) -> float:
    """What of a GPU's memory a step may plan with."""
    if gpu.is_cpu:
        return gpu.memory_bytes * (1 - FRAGMENTATION)
    return max(0.0, gpu.memory_bytes * (1 - FRAGMENTATION) - RESERVED_BYTES)


def product_bytes(precision: Precision) -> int:
    return 4 if precision is Precision.FP32 else 2


def memory_of(plan: Plan, model: Transformer, microbatch: int, software: Software = WINDLASS) -> Memory:
    """For a sized plan. A pipeline's first process keeps the most microbatches, its last one the logits."""
    stages = {0, plan.pipeline - 1}
    return max((_stage_memory(plan, model, microbatch, stage, software) for stage in stages), key=lambda m: m.total)


def state_memory(plan: Plan, model: ModelFacts) -> Memory:
    """Of a model that is a black box: its state alone."""
    return _state(plan, model.parameters, model.parameters / max(2, model.layers or 2))


def _stage_memory(plan: Plan, model: Transformer, microbatch: int, stage: int, software: Software) -> Memory:
    first, last = stage == 0, stage == plan.pipeline - 1
    layers = layers_per_process(plan, model.layers)
    tables = model.table_parameters * (1 if first and last and model.tied else int(first) + int(last))
    own = (layers * model.block_parameters + tables) / plan.tensor
    largest = max(model.block_parameters, model.table_parameters) / plan.tensor
    tokens = microbatch * model.sequence
    recompute = plan.activation_checkpoint
    kept = layers * block_activations(plan, model, tokens, recompute, software) * in_flight(plan, stage)
    if recompute is not Recompute.NONE:
        # One block at a time is computed again, and is then there as a whole.
        kept += block_activations(plan, model, tokens, Recompute.NONE, software)
    kept += tokens * model.width * product_bytes(plan.precision)
    per_logit = LOGIT_BYTES if plan.compile else EAGER_LOGIT_BYTES
    logits = tokens * model.vocabulary / plan.tensor * per_logit if last else 0.0
    return _state(plan, own, largest, activations=kept, loss=logits)


def _state(plan: Plan, own: float, largest: float, *, activations: float = 0.0, loss: float = 0.0) -> Memory:
    """`own`: parameters of this process's layers; `largest`: of the largest unit that is fetched at once."""
    low = product_bytes(plan.precision)
    copied = low if plan.precision is not Precision.FP32 or plan.shard > 1 else 0
    units = min(own, WHOLE_BLOCKS * largest)
    sharded = own / plan.shard
    stay_whole = plan.shard == 1 or plan.zero < 3
    parameters = (0 if plan.offload else _MASTER * sharded) + copied * (own if stay_whole else units)
    if plan.shard == 1:
        gradients = _GRADIENT * own
    else:
        # One unit's gradients come out of the backward pass and go into the reduction's buffer.
        gradients = _GRADIENT * sharded + (low + _GRADIENT) * min(own, largest)
        gradients += _GRADIENT * own if plan.zero == 1 else 0.0
    optimizer = 0 if plan.offload else _MOMENTS * sharded
    return Memory(parameters=parameters, gradients=gradients, optimizer=optimizer, activations=activations, loss=loss)


def layers_per_process(plan: Plan, layers: int) -> int:
    """Of the process that has the most."""
    chunks = plan.total_stages // plan.pipeline
    return math.ceil(layers / plan.total_stages) * chunks


def in_flight(plan: Plan, stage: int) -> float:
    """Microbatches whose activations a process of the pipeline keeps at once, in units of all its layers."""
    if plan.pipeline == 1:
        return 1
    if plan.schedule is Schedule.GPIPE:
        return plan.accumulate
    ahead = plan.pipeline - stage
    if plan.schedule is Schedule.INTERLEAVED:
        # Warm-up runs through all chunks but the last one before the first backward pass frees anything.
        chunks = plan.stages_per_process
        return min(plan.accumulate, plan.pipeline * (chunks - 1) / chunks + (2 * ahead - 1) / chunks)
    return min(plan.accumulate, ahead)


def block_activations(plan: Plan, model: Transformer, tokens: float, recompute: Recompute, software: Software) -> float:
    """Bytes that one block keeps of one microbatch.

    Whole on every process of `tensor` unless `sequence`: what is as wide as the model and lies between products.
    Divided among them: queries, keys, values, attention's result, and the feed-forward part's inside.
    """
    size = product_bytes(plan.precision)
    width, tensor = model.width, plan.tensor
    between = width / (tensor if plan.sequence else 1)
    if recompute is Recompute.FULL:
        return tokens * between * size
    keys = 2 * width * model.kv_heads / model.heads
    projections, attended = width + keys, width
    up = model.inner * (2 if model.gated else 1)
    if recompute is Recompute.SELECTIVE:
        kept = 1 - software.selective_products
        # The block's input, attention's result, and the results of the products that are not done again.
        whole = between * (1 + 2 * kept)
        divided = attended + kept * (projections + up)
    else:
        # Inputs of both norms and of the products after them; the feed-forward part also before its last product.
        whole = between * 4
        divided = projections + attended + up + model.inner
    scores = 0.0
    if not software.fused_attention and recompute is Recompute.NONE:
        scores = _SCORE_BYTES * model.heads * model.sequence / tensor
    return tokens * ((whole + divided / tensor) * size + scores)
