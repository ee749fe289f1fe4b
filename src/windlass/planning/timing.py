"""How long a step takes under a plan, part by part."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.core.plan import Plan
from windlass.planning.compute import Machine, microbatch_s, optimizer_s
from windlass.planning.facts import ClusterFacts, Transformer
from windlass.planning.memory import layers_per_process
from windlass.planning.network import Exchange, exchange, host_s, pipeline_s, tensor_s
from windlass.planning.software import WINDLASS, Software

# Sending beside computing is not free: collectives take multiprocessors and memory bandwidth away from products.
CONTENTION = 0.2
# Nor can all of it be beside: the first block waits for its parameters, the last gradient for its reduction.
BESIDE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one step, by what they are spent on."""

    compute: float
    tensor: float  # sums within `tensor`
    exchange: float  # of parameters and gradients, as far as it is not hidden behind computing
    messages: float  # between stages of a pipeline
    bubble: float  # stages that wait for each other
    host: float  # state that comes from the host's memory and goes back, with `offload`
    optimizer: float

    @property
    def step(self) -> float:
        return self.compute + self.tensor + self.exchange + self.messages + self.bubble + self.host + self.optimizer


def time_of(
    plan: Plan, model: Transformer, cluster: ClusterFacts, microbatch: int, software: Software = WINDLASS
) -> Timing:
    """For a sized plan."""
    machine = Machine(gpu=cluster.gpu, plan=plan, software=software)
    tokens = microbatch * model.sequence
    layers = layers_per_process(plan, model.layers)
    count = plan.accumulate
    one = microbatch_s(machine, model, microbatch)
    sums = layers * tensor_s(cluster, plan, model, tokens, software)
    messages = pipeline_s(cluster, plan, model, tokens, software)
    chunks = plan.total_stages // plan.pipeline
    parameters = _own_parameters(plan, model)
    sent = exchange(cluster, plan, parameters, layers, software)
    return Timing(
        compute=count * one,
        tensor=count * sums,
        exchange=_shown(sent, count, one),
        messages=count * messages,
        bubble=(plan.pipeline - 1) / chunks * (one + sums + messages),
        host=host_s(plan, parameters),
        optimizer=optimizer_s(machine, parameters),
    )


def _shown(sent: Exchange, count: int, one: float) -> float:
    """What of the exchange is waited for. The backward pass of a microbatch takes twice as long as the forward pass."""
    forward, backward = one / 3, one * 2 / 3
    first = _not_hidden(sent.forward + sent.first_forward, forward)
    last = _not_hidden(sent.backward + sent.last_backward, backward)
    between = _not_hidden(sent.forward, forward) + _not_hidden(sent.backward, backward)
    return first + (count - 1) * between + last


def _not_hidden(sent: float, beside: float) -> float:
    hidden = min(sent, BESIDE * beside)
    return sent - hidden + CONTENTION * hidden


def _own_parameters(plan: Plan, model: Transformer) -> float:
    """Of a process at the end of a pipeline."""
    tables = model.table_parameters * (1 if plan.pipeline > 1 or model.tied else 2)
    return (layers_per_process(plan, model.layers) * model.block_parameters + tables) / plan.tensor
