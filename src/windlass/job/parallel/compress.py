"""Smaller gradients on the network: communication hooks of DDP for each `compress` of a plan.

Lossy. PowerSGD and top-k keep what they left out and add it to the next step's gradient (error feedback).
"""

# No `from __future__ import annotations` here: DDP reads the hooks' annotations and wants types, not text.
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from windlass.core.plan import Compression

TOPK_SHARE = 0.01  # of a bucket's elements that are sent
TOPK_LEAST = 64  # small buckets lose too much otherwise
POWERSGD_RANK = 4
POWERSGD_WHOLE_STEPS = 10  # sent whole at first, while gradients change direction from step to step


def apply_compression(model: DistributedDataParallel, kind: Compression, group: Any) -> None:
    match kind:
        case Compression.FP16:
            model.register_comm_hook(group, default_hooks.fp16_compress_hook)
        case Compression.BF16:
            model.register_comm_hook(group, _bf16_hook)
        case Compression.POWERSGD:
            state = powerSGD_hook.PowerSGDState(
                group, matrix_approximation_rank=POWERSGD_RANK, start_powerSGD_iter=POWERSGD_WHOLE_STEPS
            )
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        case Compression.TOPK:
            model.register_comm_hook(_TopK(group), _topk_hook)


# torch's own hook for it asks for NCCL, though gloo can sum bf16 as well.
def _bf16_hook(group: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    whole: torch.Tensor = bucket.buffer()
    half = whole.to(torch.bfloat16).div_(dist.get_world_size(group))
    work = dist.all_reduce(half, group=group, async_op=True)

    def widen(_done: Any) -> torch.Tensor:
        return whole.copy_(half)

    done: torch.futures.Future[torch.Tensor] = work.get_future().then(widen)
    return done


class _TopK:
    """What each bucket still owes."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.owed: dict[tuple[int, int], torch.Tensor] = {}


def _topk_hook(state: _TopK, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Each process sends its largest elements with their places; all add up all of them."""
    whole: torch.Tensor = bucket.buffer()
    # DDP makes its buckets anew after the first step: a debt belongs to a bucket of that size.
    key = (bucket.index(), whole.numel())
    owed = state.owed.get(key)
    if owed is None:
        owed = state.owed[key] = torch.zeros_like(whole)
    owed.add_(whole)
    count = min(whole.numel(), max(TOPK_LEAST, int(whole.numel() * TOPK_SHARE)))
    places = owed.abs().topk(count).indices
    values = owed[places]
    owed[places] = 0
    mine = torch.cat((places.int(), values.float().view(torch.int32)))
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(state.group))]
    dist.all_gather(everyone, mine, group=state.group)
    whole.zero_()
    for theirs in everyone:
        whole.index_add_(0, theirs[:count], theirs[count:].view(torch.float32).to(whole.dtype))
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(whole.div_(len(everyone)))
    return done
