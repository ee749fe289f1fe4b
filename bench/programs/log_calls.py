"""A training that only logs, and how long each call took: `log_calls.py STEPS STEPS_PER_S METRICS PAUSE FILE`.

Between two calls it sleeps, as one does that waits for its GPU, or works through some megabytes (PAUSE is `sleep` or
`work`). FILE gets, of each call, microseconds by the clock, microseconds of CPU of its thread, and whether somebody
else was given the core meanwhile.
"""

from __future__ import annotations

import array
import json
import os
import random
import resource
import sys
import time

from windlass import job

steps, steps_per_s, count, pause, path = (
    int(sys.argv[1]),
    float(sys.argv[2]),
    int(sys.argv[3]),
    sys.argv[4],
    sys.argv[5],
)
numbers = array.array("d", [random.random()]) * (1 << 19)  # 4 MB: more than a core's own cache has
calls: list[tuple[float, float, bool]] = []


def switches() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def wait_until(due: float) -> None:
    if pause == "work":
        while time.monotonic() < due:
            sum(numbers[: 1 << 16])
            numbers[:] = numbers[1:] + numbers[:1]
    elif (early := due - time.monotonic()) > 0:
        time.sleep(early)


for step in range(200):  # not counted: caches fill, the writer's thread starts
    job.log(step, loss=0.5)
began = time.monotonic()
for step in range(steps):
    if steps_per_s:
        wait_until(began + step / steps_per_s)
    metrics = {f"metric/{number}": random.random() for number in range(count)}
    before = switches()
    cpu_ns, wall_ns = time.thread_time_ns(), time.perf_counter_ns()
    job.log(step, **metrics)
    wall_ns, cpu_ns = time.perf_counter_ns() - wall_ns, time.thread_time_ns() - cpu_ns
    calls.append((wall_ns / 1000, cpu_ns / 1000, switches() > before))
job.flush()
with open(f"{path}.part", "w") as file:
    json.dump(calls, file)
os.rename(f"{path}.part", path)
