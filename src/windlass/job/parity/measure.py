"""What a plan takes of one process: peak memory, bytes sent, and parameters, gradients and optimizer state.

Bytes sent are those of ring algorithms, from the sizes that the collectives are called with: of an all-reduce over n
processes 2(n-1)/n of it, of a gather or scatter (n-1)/n of the whole, of a broadcast (n-1)/n; a send is itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import _resolve_process_group  # type: ignore[attr-defined]
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from windlass.job.parallel.norm import local
from windlass.job.parallel.parallelize import Parallel
from windlass.job.parallel.units import blocks_of


@dataclass(slots=True, kw_only=True)
class Footprint:
    """Of one process, in bytes; each at its largest."""

    peak: int = 0  # all tensors, also those that are not the model's
    sent: int = 0  # in one step
    parameters: int = 0
    gradients: int = 0
    state: int = 0  # of the optimizer

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


@contextlib.contextmanager
def peak_memory(footprint: Footprint) -> Iterator[None]:
    """Of everything that is allocated within: on the GPU by torch's own count, on the CPU by the profiler's."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        yield
        footprint.peak = torch.cuda.max_memory_allocated()
        return
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        yield
    results: Any = recorded.profiler
    now = 0
    for event in results.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            footprint.peak = max(footprint.peak, now)


@contextlib.contextmanager
def count_sent_bytes(footprint: Footprint) -> Iterator[None]:
    here = threading.get_ident()
    all_reduce = dist.all_reduce

    def counted_all_reduce(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != here:
            counted.sent += _reduced(dist.get_world_size(kwargs.get("group"))) * _size(tensor)
        return all_reduce(tensor, *args, **kwargs)

    with _Collectives() as counted:
        # PowerSGD goes on in gloo's threads, which a dispatch mode of this one does not see.
        dist.all_reduce = counted_all_reduce
        try:
            yield
        finally:
            dist.all_reduce = all_reduce
    footprint.sent = round(counted.sent)


class _Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every collective of the thread, whoever calls it: DDP's reducer, FSDP, DTensor or the pipeline."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sent = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind is DTensor for kind in types):
            return NotImplemented  # let it become operations on plain tensors first
        self.sent += sent_bytes(func.name().partition(".")[0], args)
        return func(*args, **(kwargs or {}))


def _reduced(n: int) -> float:
    return 2 * (n - 1) / n


def _whole(n: int) -> float:
    return (n - 1) / n


def _part(n: int) -> float:
    return n - 1


def _once(_n: int) -> float:
    return 1


# Which argument holds the bytes, and how often each of n processes sends them.
_RULES: dict[str, tuple[int, Callable[[int], float]]] = {
    "c10d::allreduce_": (0, _reduced),
    "c10d::allreduce_coalesced_": (0, _reduced),
    "c10d::_allgather_base_": (1, _part),
    "c10d::allgather_": (1, _part),
    "c10d::allgather_into_tensor_coalesced_": (1, _part),
    "c10d::_reduce_scatter_base_": (1, _whole),
    "c10d::reduce_scatter_": (1, _whole),
    "c10d::reduce_scatter_tensor_coalesced_": (1, _whole),
    "c10d::broadcast_": (0, _whole),
    "c10d::alltoall_base_": (1, _whole),
    "c10d::alltoall_": (1, _whole),
    "c10d::send": (0, _once),
    "_c10d_functional::all_reduce": (0, _reduced),
    "_c10d_functional::all_reduce_": (0, _reduced),
    "_c10d_functional::all_reduce_coalesced": (0, _reduced),
    "_c10d_functional::all_gather_into_tensor": (0, _part),
    "_c10d_functional::all_gather_into_tensor_coalesced": (0, _part),
    "_c10d_functional::reduce_scatter_tensor": (0, _whole),
    "_c10d_functional::reduce_scatter_tensor_coalesced": (0, _whole),
    "_c10d_functional::all_to_all_single": (0, _whole),
    "_c10d_functional::broadcast": (0, _whole),
}


def sent_bytes(name: str, args: Any) -> float:
    if name not in _RULES:
        return 0
    place, times = _RULES[name]
    return times(_group_size(args)) * _size(args[place])


def _size(value: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(value) if isinstance(leaf, Tensor))


def _group_size(args: Any) -> int:
    for value in args:
        if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type()):
            return ProcessGroup.unbox(value).size()
    names = [value for value in args if isinstance(value, str)]
    group: Any = names[-1] if names else None
    return _resolve_process_group(group).size() if names else 1


@contextlib.contextmanager
def watch_state(footprint: Footprint, parallel: Parallel, inner: torch.optim.Optimizer) -> Iterator[None]:
    """Look before and after every block, forward and backward: parameters are whole only while it works with them."""
    watch = _State(footprint, parallel, inner)
    handles = [
        handle
        for part in parallel.parts
        for block in blocks_of(part, parallel.split)
        for handle in (block.register_forward_pre_hook(watch.before), block.register_forward_hook(watch.after))
    ]
    # The last gradient of a step is complete only when the optimizer starts.
    handles.append(inner.register_step_pre_hook(watch.look))
    handles.append(inner.register_step_post_hook(watch.look))
    yield
    for handle in handles:
        handle.remove()


class _State:
    def __init__(self, footprint: Footprint, parallel: Parallel, inner: torch.optim.Optimizer) -> None:
        self._footprint = footprint
        self._parallel = parallel
        self._inner = inner
        self._own = list(parallel.parameters())  # divided, as long as no block is at work

    def before(self, _module: nn.Module, _args: Any) -> None:
        self.look()

    def after(self, _module: nn.Module, _args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(self.look)  # type: ignore[no-untyped-call]

    def look(self, *_ignored: Any) -> None:
        now = list(self._parallel.parameters())
        whole = [there for own, there in zip(self._own, now, strict=True) if there is not own]
        held = [local(p) for p in (*self._own, *whole)]
        gradients = [local(p.grad) for p in (*self._own, *whole) if p.grad is not None]
        state = [
            local(value)
            for values in self._inner.state.values()
            for value in values.values()
            if isinstance(value, Tensor) and value.dim()
        ]
        seen = self._footprint
        seen.parameters = max(seen.parameters, _size(held))
        seen.gradients = max(seen.gradients, _size(gradients))
        seen.state = max(seen.state, _size(state))
