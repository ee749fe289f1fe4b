"""A data parallel loop that is killed now and then: the same model and batches with either way of coming back.

`recovering.py windlass|torchrun FOLDER STEPS`. Rank 0 adds a line a step to FOLDER/steps: its process, how many steps
are done, when. At the end it writes the last loss and a digest of the model.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

EVERY = 20  # steps between two checkpoints on disk
WIDTH, LAYERS, BATCH = 512, 6, 64


def main(way: str, folder: Path, total: int) -> None:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps = with_windlass if way == "windlass" else with_dcp
    loss = torch.zeros(())
    with (folder / "steps").open("ab", buffering=0) as out:
        for step in steps(model, optimizer, folder, total):
            loss = train(model, optimizer, step, rank)
            if rank == 0:
                out.write(f"{os.getpid()} {step + 1} {time.monotonic()}\n".encode())
    if rank == 0:
        (folder / "end").write_text(f"{loss.item()!r} {digest(model)}\n")
    dist.destroy_process_group()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int) -> Tensor:
    source = torch.Generator().manual_seed(1000 * step + rank)
    batch = torch.randn(BATCH, WIDTH, generator=source)
    optimizer.zero_grad()
    loss = (model(batch) - batch.roll(1, dims=1)).square().mean()
    loss.backward()
    gradients = torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])
    dist.all_reduce(gradients)
    gradients /= dist.get_world_size()
    at = 0
    for one in model.parameters():
        one.grad = gradients[at : at + one.numel()].view_as(one)
        at += one.numel()
    optimizer.step()
    return loss.detach()


def with_windlass(model: nn.Module, optimizer: torch.optim.Optimizer, _folder: Path, total: int) -> Iterator[int]:
    from windlass import job

    with job.checkpoints(model=model, optimizer=optimizer, every=EVERY, memory=1) as saving:
        yield from saving.steps(total)


def with_dcp(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path, total: int) -> Iterator[int]:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def state() -> dict[str, object]:
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments}

    first = 0
    saved = [path for path in folder.glob("saved-*") if (path / ".metadata").exists()]
    if saved:
        newest = max(saved, key=lambda path: int(path.name.partition("-")[2]))
        loaded = state()
        dcp.load(loaded, checkpoint_id=newest)
        give: Callable[..., object] = set_state_dict
        give(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
        first = int(newest.name.partition("-")[2])
    for step in range(first, total):
        yield step
        if (step + 1) % EVERY == 0:
            dcp.save(state(), checkpoint_id=folder / f"saved-{step + 1}")


def digest(model: nn.Module) -> str:
    return hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.parameters())).hexdigest()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
