"""One process of a run, with its device and its process group: `init`.

Works alone, under Windlass and under any launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import atexit
import os
import random
import sys
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from windlass.agent.quiet import settle
from windlass.job.failures import listen, watch
from windlass.job.session import session


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    rank: int
    world_size: int
    local_rank: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0


_process: Process | None = None


def init(*, timeout_s: float = 1800.0) -> Process:
    """Choose this process's device, join the others if there are any, seed what is random. A second call is free.

    The group is left when the process ends. When one process raises, the others end within seconds, saying which one
    and why, instead of waiting for it until `timeout_s` is over.
    """
    global _process
    if _process is not None:
        return _process
    mine = session()
    device = _device(mine.local_rank)
    if mine.world_size > 1:
        _join(device, timeout_s)
    if mine.seed is not None:
        seed_everything(mine.seed)
    _process = Process(rank=mine.rank, world_size=mine.world_size, local_rank=mine.local_rank, device=device)
    return _process


def seed_everything(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    # A launcher may show each process its own GPU only, or all of the node's.
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _join(device: torch.device, timeout_s: float) -> None:
    if not dist.is_initialized():
        cuda = device.type == "cuda"
        dist.init_process_group(
            # Both, so that what lives in the host's memory can be exchanged too.
            backend="cpu:gloo,cuda:nccl" if cuda else "gloo",
            init_method="env://",
            timeout=timedelta(seconds=timeout_s),
            device_id=device if cuda else None,
        )
        atexit.register(_leave)
    # Whoever began the group itself has its own ideas about failures, but hardly about this.
    port = [listen(dist.get_world_size()) if dist.get_rank() == 0 else 0]
    dist.broadcast_object_list(port, src=0)
    watch(dist.get_rank(), os.environ.get("MASTER_ADDR", "localhost"), port[0])


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
    settle()
