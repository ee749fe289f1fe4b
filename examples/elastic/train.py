"""Training on whatever nodes there are, with the same samples in the same order on any number of them.

windlass run --file spec.yaml
python train.py                                      # alone; the losses are the same

Lose a node and the run goes on with those that are left; free one and it is stopped, saves that very step, and goes on
with one more.
"""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from windlass import job

STEPS = int(job.params.get("steps", 500))
BATCH = 48  # samples per step, of all processes together: 1 to 48 of them can share it


class Waves(Dataset[tuple[Tensor, Tensor]]):
    """Which of four waves a noisy one is."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(number)
        kind = number % 4
        wave = torch.sin(torch.linspace(0, 3 * (kind + 1), 32)) + 0.3 * torch.randn(32, generator=draw)
        return wave, torch.tensor(kind)


job.init()
torch.manual_seed(1)  # the same first weights everywhere
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 4))
parallel = job.parallelize(model, loss=nn.functional.cross_entropy)
optimizer = job.optimizer(parallel, torch.optim.AdamW, lr=1e-3)
waves = Waves()
order = job.order(len(waves), BATCH, seed=1, parallel=parallel)
batches = job.loader(DataLoader(waves, batch_sampler=order))

with job.checkpoints(model=parallel, optimizer=optimizer, loader=batches, every="1m") as ckpt:
    if job.is_main:
        print(f"{job.world_size} processes go on from step {ckpt.first_step}", flush=True)
    for step, (inputs, targets) in zip(ckpt.steps(STEPS), batches, strict=False):
        loss = parallel.step(inputs, targets, share=order.share)
        optimizer.step()
        optimizer.zero_grad()
        if job.is_main:
            job.log(step + 1, total=STEPS, loss=loss)
            if (step + 1) % 50 == 0:
                print(f"step {step + 1:4d}  loss {loss.item():.4f}", flush=True)
