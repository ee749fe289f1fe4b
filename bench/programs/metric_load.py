"""A training that only logs: 20 metrics a step, as many steps a second as it is told, and how long each call took."""

from __future__ import annotations

import json
import math
import os
import random
import struct
import sys
import time

from windlass import job

begin_at, lasts_s, steps_per_s, counts = float(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
_single = struct.Struct("f")


def single(number: float) -> float:
    """As a tensor's value is: most of what trainings log are single floats."""
    return float(_single.unpack(_single.pack(number))[0])


def values(step: int) -> dict[str, float]:
    noise = [random.gauss(0, 1) for _ in range(10)]
    loss = 2.0 + 8.0 / math.sqrt(step + 1)
    found = {f"loss/{part}": single(loss + 0.1 * noise[part]) for part in range(6)}
    found |= {f"grad_norm/{part}": single(math.exp(0.3 * noise[6 + part])) for part in range(4)}
    found |= {"lr": 3e-4 * min(1.0, step / 1000), "epoch": step // 500, "tokens": step * 524_288}
    found |= {"tokens_per_s": round(41_000 + 300 * noise[0], 1), "step_s": round(0.128 + 0.002 * noise[1], 4)}
    found |= {"accuracy": (500 + step % 400) / 1000, "memory_gb": 61.5, "scale": 65536.0, "skipped": 0, "mfu": 0.47}
    return found


time.sleep(max(0.0, begin_at - time.time() + random.random() / steps_per_s))
began, took, step = time.monotonic(), [], 0
while time.monotonic() - began < lasts_s:
    due = began + step / steps_per_s
    if (early := due - time.monotonic()) > 0:
        time.sleep(early)
    metrics = values(step)
    before = time.perf_counter_ns()
    job.log(step, **metrics)
    took.append(time.perf_counter_ns() - before)
    step += 1
job.flush()
with open(f"{counts}/{job.run_id}.part", "w") as file:
    json.dump({"points": 20 * step, "lasted_s": time.monotonic() - began, "call_ns": took}, file)
os.rename(f"{counts}/{job.run_id}.part", f"{counts}/{job.run_id}.json")  # whole, or not there
