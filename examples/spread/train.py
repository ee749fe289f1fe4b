"""One script, many plans: what the model and the step are is said here, how they are spread is said outside.

windlass run --file spec.yaml                        # two processes, each with half of every product
windlass run --file spec.yaml --plan data=2          # two copies
windlass run --file spec.yaml --plan pipeline=2,accumulate=4
python train.py                                      # alone; the losses are the same under every plan
"""

import torch
from torch import Tensor, nn

from windlass import job

STEPS = int(job.params.get("steps", 100))
BATCH = 64  # samples per step, of all processes together
WIDTH, LAYERS = 64, 4


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(16, WIDTH)
        self.blocks = nn.ModuleDict(
            {
                str(number): nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
                for number in range(LAYERS)
            }
        )
        self.leave = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        # A stage of a pipeline has some of the blocks, and None for what other stages have.
        if self.enter is not None:
            x = self.enter(x)
        for block in self.blocks.values():
            x = x + block(x)
        return x if self.leave is None else self.leave(x)

    def split(self) -> job.Split:
        return job.Split(
            tensor={"blocks.*.0": job.Cut.COLUMN, "blocks.*.2": job.Cut.ROW},
            blocks="blocks",
            first=("enter",),
            last=("leave",),
            shape=job.ModelShape(layers=LAYERS),
        )


def batch(step: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(step)
    inputs = torch.randn(BATCH, 16, generator=draw)
    return inputs, inputs[:, :4].argmax(1)


job.init()
torch.manual_seed(1)  # the same first weights everywhere
parallel = job.parallelize(Model(), loss=nn.functional.cross_entropy)
optimizer = job.optimizer(parallel, torch.optim.AdamW, lr=3e-3)
rows = BATCH // parallel.data_world
mine = slice(parallel.data_rank * rows, (parallel.data_rank + 1) * rows)
if job.is_main:
    print(f"{job.world_size} processes, plan {parallel.plan}")

batches = (batch(step) for step in range(STEPS))
with job.steps(parallel, total=STEPS, samples_per_step=BATCH) as steps:
    for inputs, targets in job.loader((inputs[mine], targets[mine]) for inputs, targets in batches):
        loss = parallel.step(inputs, targets)
        report = optimizer.step()
        optimizer.zero_grad()
        steps.done(loss, report)
        if job.is_main and steps.number % 20 == 0:
            print(f"step {steps.number:4d}  loss {loss.item():.4f}", flush=True)
