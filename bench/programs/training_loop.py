"""A small training loop that prints a line and logs metrics every step: `training_loop.py FOLDER`.

It steps in windows: it waits for a number of seconds to arrive in FOLDER/go, steps for so long, and answers in
FOLDER/done with the steps made and the seconds they took. The end of `go` ends it. FOLDER/pid says which process it is.
"""

import os
import sys
import time

import torch
from torch import nn

from windlass import job

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 256))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
batch, target = torch.randn(128, 256), torch.randn(128, 256)
step = 0


def train_step() -> None:
    global step
    loss = nn.functional.mse_loss(model(batch), target)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    step += 1
    value = loss.item()
    print(f"step {step}: loss {value:.4f}")
    job.log(step, total=1_000_000, loss=value, lr=1e-4)


for _ in range(20):
    train_step()
with open(f"{sys.argv[1]}/pid", "w") as file:
    file.write(str(os.getpid()))
with open(f"{sys.argv[1]}/go") as go, open(f"{sys.argv[1]}/done", "w") as done:
    for line in go:
        window_s, first = float(line), step
        began = time.perf_counter()
        while (took := time.perf_counter() - began) < window_s:
            train_step()
        done.write(f"{step - first} {took}\n")
        done.flush()
