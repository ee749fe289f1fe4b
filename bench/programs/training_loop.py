"""A training loop that prints a line and logs metrics every step: `training_loop.py DEVICE MICRO_BATCHES FOLDER`.

It steps in windows: it waits for `ARM SECONDS` to arrive in FOLDER/go, steps for so long, and answers in FOLDER/done
with the steps made, the seconds they took, the seconds of CPU that the loop's thread and the whole process used, and
those of the loop's thread in all that is not computing: batches, lines, metrics. The end of `go` ends it. FOLDER/pid
says which process it is.

As `windlass` its batches come from `job.loader`, its steps go through `job.steps`, its lines to its output and its
metrics to the run; what waits to be written is written before a window ends. As `bare` it has none of these: lines go
to a file, `job.log` is what it is outside a run.
"""

import itertools
import os
import sys
import time
from typing import Any

import torch
from torch import nn

from windlass import job
from windlass.job.session import Session

DEVICE, MICRO_BATCHES, FOLDER = sys.argv[1], int(sys.argv[2]), sys.argv[3]
TOTAL = 10_000_000
# On a CPU small enough for a core's own cache: what lies beyond differs from process to process by more than is
# measured here. On a GPU so large that it is the GPU which a step waits for.
ROWS, WIDTH = (8192, 4096) if DEVICE == "cuda" else (32, 96)
OUTER = WIDTH * 2 // 3 // 64 * 64

torch.set_num_threads(1)
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
model = nn.Sequential(
    nn.Linear(OUTER, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, OUTER)
).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
a_step = [torch.randn(2, ROWS, OUTER, device=DEVICE).unbind() for _ in range(MICRO_BATCHES)]
loaded = iter(job.loader(itertools.repeat(a_step)))
meter = job.steps(model, total=TOTAL, samples_per_step=ROWS * MICRO_BATCHES)
alone, plain = Session({}), itertools.repeat(a_step)
lines = open(f"{FOLDER}/lines", "w")  # noqa: SIM115  # as long as the process
steps = {"windlass": 0, "bare": 0}


def compute(batches: Any) -> tuple[torch.Tensor, torch.Tensor]:
    optimizer.zero_grad()
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss, norm


def tell_nobody(loss: torch.Tensor, _norm: torch.Tensor) -> None:
    steps["bare"] += 1
    value = loss.item()
    print(f"step {steps['bare']}: loss {value:.4f}", file=lines)
    alone.log(steps["bare"], TOTAL, {"last_loss": value, "lr": 1e-4})


def tell_windlass(loss: torch.Tensor, norm: torch.Tensor) -> None:
    steps["windlass"] += 1
    value = loss.item()
    print(f"step {steps['windlass']}: loss {value:.4f}")
    job.log(steps["windlass"], total=TOTAL, last_loss=value, lr=1e-4)
    meter.done(loss, norm)


def step(arm: str) -> float:
    """Seconds of CPU beside computing. Clocks are read in both arms: they cost both the same."""
    source, tell = ARMS[arm]
    began = time.thread_time()
    batches = next(source)
    loaded_at = time.thread_time()
    loss, norm = compute(batches)
    loss.item()  # waits for a GPU, which counts as computing
    computed_at = time.thread_time()
    tell(loss, norm)
    return time.thread_time() - computed_at + loaded_at - began


ARMS: dict[str, tuple[Any, Any]] = {"windlass": (loaded, tell_windlass), "bare": (plain, tell_nobody)}
for _ in range(20):
    step("bare")
    step("windlass")
with open(f"{FOLDER}/pid", "w") as file:
    file.write(str(os.getpid()))
with open(f"{FOLDER}/go") as go, open(f"{FOLDER}/done", "w") as done:
    for line in go:
        arm, wanted_s = line.split()
        window_s, made, beside_s = float(wanted_s), 0, 0.0
        began, mine_s, all_s = time.perf_counter(), time.thread_time(), time.process_time()
        while time.perf_counter() - began < window_s:
            beside_s += step(arm)
            made += 1
        if arm == "windlass":
            job.flush()
        took_s = time.perf_counter() - began
        mine_s, all_s = time.thread_time() - mine_s, time.process_time() - all_s
        done.write(f"{made} {took_s} {mine_s} {all_s} {beside_s}\n")
        done.flush()
