"""A training script's beginning: imports torch, then says when. `first_line.py FOLDER` leaves a file per rank there."""

import os
import sys
import time

import torch

now = time.time()
rank = os.environ.get("RANK") or os.environ.get("SUBMITIT_LOCAL_GLOBALID") or "0"
print(f"rank {rank} is in its first line with torch {torch.__version__}", flush=True)
with open(os.path.join(sys.argv[1], f"{rank}.new"), "w") as file:
    file.write(repr(now))
os.rename(file.name, os.path.join(sys.argv[1], rank))
