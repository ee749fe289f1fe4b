"""A small training loop that prints a line and logs metrics every step: `training_loop.py [accounted] FOLDER`.

With `accounted` its batches come from `job.loader` and its steps go through `job.steps`; without, it has neither.

It steps in windows: it waits for a number of seconds to arrive in FOLDER/go, steps for so long, and answers in
FOLDER/done with the steps made, the seconds they took, and the seconds of CPU that they used. The end of `go` ends it.
FOLDER/pid says which process it is.
"""

import itertools
import os
import sys
import time

import torch
from torch import nn

from windlass import job

MICRO_BATCHES = 16

torch.set_num_threads(1)
torch.manual_seed(0)
# Small enough for a core's own cache: what lies beyond differs from process to process by more than is measured here.
model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 64))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
a_step = [(torch.randn(32, 64), torch.randn(32, 64)) for _ in range(MICRO_BATCHES)]
batches = itertools.repeat(a_step)
meter = None
if "accounted" in sys.argv:
    batches = iter(job.loader(batches))
    meter = job.steps(model, total=1_000_000, samples_per_step=32 * MICRO_BATCHES)
step = 0


def train_step() -> None:
    global step
    optimizer.zero_grad()
    for inputs, targets in next(batches):
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    step += 1
    value = loss.item()
    print(f"step {step}: loss {value:.4f}")
    job.log(step, total=1_000_000, last_loss=value, lr=1e-4)
    if meter is not None:
        meter.done(loss, norm)


for _ in range(20):
    train_step()
with open(f"{sys.argv[-1]}/pid", "w") as file:
    file.write(str(os.getpid()))
with open(f"{sys.argv[-1]}/go") as go, open(f"{sys.argv[-1]}/done", "w") as done:
    for line in go:
        window_s, first = float(line), step
        began, cpu_s = time.perf_counter(), time.process_time()
        while (took := time.perf_counter() - began) < window_s:
            train_step()
        done.write(f"{step - first} {took} {time.process_time() - cpu_s}\n")
        done.flush()
