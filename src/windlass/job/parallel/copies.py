"""Copies of a model and the division of their state: DDP for plain copies, FSDP2 for everything else.

DDP beside tensor or pipeline parallelism fails or, worse, is silently wrong; FSDP over one part is plain copying there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from windlass.core.plan import Compression, InvalidPlan, Plan
from windlass.job.parallel.compress import apply_compression
from windlass.job.parallel.mesh import copies_mesh, group_of
from windlass.job.parallel.precision import compute_dtype

# PowerSGD's hook goes on when its first exchange is done, and gloo says so to each process in an order of its own:
# with several buckets, processes would answer each other's wrong questions.
_ONE_BUCKET_MB = 2**20
_UNUSED = "Expected to have finished reduction"  # what DDP says in the step after
_USE_ALL = (
    "copies exchange the gradients of all parameters in every step: freeze those that the loss does not depend on "
    "(parameter.requires_grad_(False)), or divide the state (shard instead of data), which can do without them"
)
_MOST_SHOWN = 5
_AT_ONCE_BYTES = 2**24


class Copies(Protocol):
    """One part of the model as the step sees it."""

    casts: bool  # by itself to the plan's precision; if not, it wants autocast around it

    def forward(self, *args: Any, **kwargs: Any) -> Any: ...

    def microbatch(self, *, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Around forward and backward of one microbatch: gradients are exchanged as late as the plan allows."""


def apply_copies(part: nn.Module, blocks: list[nn.Module], plan: Plan, mesh: DeviceMesh | None) -> Copies:
    if mesh is None:
        return Alone(part)
    if uses_ddp(plan):
        return Replicas(part, plan, mesh)
    return Shards(part, blocks, plan, mesh) if is_divided(plan) else Alone(part)


def is_divided(plan: Plan) -> bool:
    """Whether FSDP2 holds the model. With one copy there is nothing to exchange, but half precision still wants its
    casts: autocast knows no DTensor."""
    if plan.world_size == 1 or uses_ddp(plan):
        return False
    return plan.copies > 1 or compute_dtype(plan.precision) is not None


def uses_ddp(plan: Plan) -> bool:
    return plan.copies > 1 and plan.shard == plan.tensor == plan.pipeline == 1


class Alone:
    casts = False

    def __init__(self, part: nn.Module) -> None:
        self._part = part

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._part(*args, **kwargs)

    def microbatch(self, *, last: bool) -> contextlib.AbstractContextManager[Any]:
        del last
        return contextlib.nullcontext()


class Replicas:
    casts = False

    def __init__(self, part: nn.Module, plan: Plan, mesh: DeviceMesh) -> None:
        device = next(part.parameters()).device
        group = group_of(mesh, "data")
        self._ddp = DistributedDataParallel(
            part,
            device_ids=[device] if device.type == "cuda" else None,
            process_group=group,
            gradient_as_bucket_view=True,  # one gradient in memory instead of two
            bucket_cap_mb=_ONE_BUCKET_MB if plan.compress is Compression.POWERSGD and device.type == "cpu" else None,
        )
        if not gives_sparse_gradients(part):  # DDP wants them sparse from the first step on
            _settle_buckets(self._ddp)
        if plan.compress is not None:
            apply_compression(self._ddp, plan.compress, group)

        self._is_checked = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._ddp(*args, **kwargs)
        except RuntimeError as error:
            if _UNUSED not in str(error):
                raise
            raise InvalidPlan(
                "parameters of the model got no gradient in the step before, though they had in others; " + _USE_ALL
            ) from error

    @contextlib.contextmanager
    def microbatch(self, *, last: bool) -> Iterator[None]:
        with contextlib.nullcontext() if last else self._ddp.no_sync():
            yield
        if last and not self._is_checked:
            self._is_checked = True
            check_gradients(self._ddp.module)


def check_gradients(part: nn.Module) -> None:
    """InvalidPlan if parameters got no gradient: DDP waits for them with those of others, which stay as they are."""
    without = [name for name, p in part.named_parameters() if p.requires_grad and p.grad is None]
    if without:
        shown = ", ".join(without[:_MOST_SHOWN]) + (
            f" and {len(without) - _MOST_SHOWN} more" if without[_MOST_SHOWN:] else ""
        )
        raise InvalidPlan(f"no gradient reaches these parameters: {shown}; {_USE_ALL}")


def gives_sparse_gradients(part: nn.Module) -> bool:
    return any(isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse for module in part.modules())


def _settle_buckets(ddp: DistributedDataParallel) -> None:
    """Let DDP arrange its buckets once, before the first step. Left alone it does so after it, and sums rounded in
    another order would tell a run that went on from a checkpoint from one that never stopped."""
    ddp.reducer.prepare_for_forward()
    sums = [parameter.sum().real for parameter in ddp.parameters() if parameter.requires_grad]
    nothing = torch.stack(sums).sum() * 0.0
    ddp.reducer.prepare_for_backward([nothing])
    nothing.backward()  # type: ignore[no-untyped-call]
    ddp.reducer._rebuild_buckets()
    ddp.zero_grad(set_to_none=True)


class Shards:
    """FSDP2 over data × shard, each block a unit. What stays whole, and for how long, is the plan's `zero`."""

    casts = True

    def __init__(self, part: nn.Module, blocks: list[nn.Module], plan: Plan, mesh: DeviceMesh) -> None:
        self._plan = plan
        dtype = compute_dtype(plan.precision)
        options: dict[str, Any] = {
            "mesh": copies_mesh(mesh, plan),
            "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None),
            "offload_policy": CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
            if plan.offload
            else OffloadPolicy(),
            "reshard_after_forward": gathers_by_block(plan),
        }
        # Statistics stay in fp32, and what they are used with must be of their type.
        exact = [m for m in part.modules() if isinstance(m, _BatchNorm)] if dtype is not None else []
        for norm in exact:
            fully_shard(norm, **options | {"mp_policy": _in_fp32(dtype)})
        for block in blocks:
            if block not in exact:
                fully_shard(block, **options)
        self._part = part
        self._root: FSDPModule = fully_shard(part, **options)
        self._statistics = [b for m in part.modules() if isinstance(m, _BatchNorm) for b in m.buffers(recurse=False)]
        self._groups = [group_of(mesh, name) for name in ("data", "shard")] if self._statistics else []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        for group in self._groups:  # what each has seen of the batch is another; as with DDP, the first one's counts
            dist._broadcast_coalesced(group, self._statistics, _AT_ONCE_BYTES, 0)  # type: ignore[attr-defined]
        return self._part(*args, **kwargs)

    @contextlib.contextmanager
    def microbatch(self, *, last: bool) -> Iterator[None]:
        self._root.set_is_last_backward(last)
        if not gathers_by_block(self._plan):
            self._root.set_reshard_after_backward(last)
        if divides_gradients(self._plan):
            # Between the copies once a step is enough.
            self._root.set_requires_all_reduce(last)
        else:
            self._root.set_requires_gradient_sync(last)
        yield


def _in_fp32(around: torch.dtype | None) -> MixedPrecisionPolicy:
    """Of a module amid others that work in the type `around`."""
    return MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32, output_dtype=around)


def gathers_by_block(plan: Plan) -> bool:
    """Whether parameters are put together only while a block works with them.

    With one part there is nothing to gather, but FSDP works on a copy of what it holds all the same: one block's then,
    not the model's.
    """
    return plan.shard == 1 or plan.zero == 3


def divides_gradients(plan: Plan) -> bool:
    """Whether gradients are divided after every microbatch, or are whole until the last one's."""
    return plan.shard > 1 and plan.zero >= 2
