"""A training that only logs 20 metrics a step, and how long each call took: `log_calls.py STEPS STEPS_PER_S FILE`.

FILE gets, of each call, microseconds by the clock, microseconds of CPU of its thread, and whether somebody else was
given the core meanwhile.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time

from windlass import job

steps, steps_per_s, path = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
calls: list[tuple[float, float, bool]] = []


def switches() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


for step in range(200):  # not counted: caches fill, the writer's thread starts
    job.log(step, loss=0.5)
began = time.monotonic()
for step in range(steps):
    due = began + step / steps_per_s if steps_per_s else 0.0
    if (early := due - time.monotonic()) > 0:
        time.sleep(early)
    metrics = {f"metric/{number}": random.random() for number in range(20)}
    before = switches()
    cpu_ns, wall_ns = time.thread_time_ns(), time.perf_counter_ns()
    job.log(step, **metrics)
    wall_ns, cpu_ns = time.perf_counter_ns() - wall_ns, time.thread_time_ns() - cpu_ns
    calls.append((wall_ns / 1000, cpu_ns / 1000, switches() > before))
job.flush()
with open(f"{path}.part", "w") as file:
    json.dump(calls, file)
os.rename(f"{path}.part", path)
