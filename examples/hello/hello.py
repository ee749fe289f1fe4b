"""The smallest run: no framework, one process, a metric and some progress.

windlass run hello.py
windlass run --param steps=50 hello.py
"""

import math
import time

from windlass import job

steps = int(job.params.get("steps", 20))
print(f"hello from rank {job.rank} of {job.world_size}")
for step in range(1, steps + 1):
    time.sleep(0.1)
    job.log(step, total=steps, loss=2 * math.exp(-3 * step / steps))
    if step % 5 == 0:
        print(f"step {step} of {steps}")
print("done")
