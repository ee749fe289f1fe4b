"""A small training that keeps checkpoints, in as many processes as wanted, and what it prints."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.torch_processes import ROOT, TorchProcess, start_process
from windlass.agent.ports import free_port

TRAINING = """
import hashlib, json, os, random, sys
import torch
from torch.distributed.tensor import DTensor
from tests.unit.job.parallel.models import batch, small_gpt
from windlass import job

folder, plan, total, every = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]

class Position:
    taken = 0
    def state_dict(self): return {"taken": self.taken}
    def load_state_dict(self, state): self.taken = state["taken"]

def fingerprint(tensors):
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        digest.update(name.encode() + whole.detach().numpy().tobytes())
    return digest.hexdigest()

def say(**what):
    if job.rank == 0:
        print(json.dumps(what), flush=True)

parallel = job.parallelize(small_gpt(), plan)
optimizer = job.optimizer(parallel, lr=1e-2)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer.inner, lambda step: 1 / (1 + step))
position = Position()
every = int(every) if every.isdigit() else every
with job.checkpoints(
    model=parallel, optimizer=optimizer, scheduler=schedule, loader=position, every=every, folder=folder
) as ckpt:
    whole = parallel.plan.pipeline == 1
    say(first=ckpt.first_step, taken=position.taken, state=fingerprint(ckpt._state.tensors()) if whole else "")
    for step in ckpt.steps(total):
        inputs, targets = batch(8, seed=position.taken)
        position.taken += 1
        each = 8 // parallel.data_world
        mine = slice(parallel.data_rank * each, (parallel.data_rank + 1) * each)
        loss = parallel.step(inputs[mine], targets[mine])
        optimizer.step(); optimizer.zero_grad(); schedule.step()
        say(step=step, loss=float(loss), random=[random.random(), float(torch.rand(1))],
            lr=optimizer.param_groups[0]["lr"])
    say(state=fingerprint(ckpt._state.tensors()) if whole else "")
"""


def start(
    folder: Path, plan: str, steps: int, *, count: int = 1, every: int | str = 2, memory: tuple[Path, ...] = ()
) -> list[TorchProcess]:
    """`memory`: of each node, between which ranks are divided."""
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(count),
        "OMP_NUM_THREADS": "1",
    }
    nodes = [{"WINDLASS_MEMORY_DIR": str(node), "WINDLASS_CHECKPOINT": '{"memory": 1}'} for node in memory] or [{}]
    return [
        start_process(
            TRAINING,
            str(folder).format(rank=rank),
            plan,
            str(steps),
            str(every),
            environ={
                **os.environ,
                **shared,
                **nodes[rank * len(nodes) // count],
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WINDLASS_SEED": "7",
                "WINDLASS_CHECKPOINT_DIR": str(folder).format(rank=rank),
            },
            folder=ROOT,
        )
        for rank in range(count)
    ]


def finish(processes: list[TorchProcess], *, code: int = 0, timeout_s: float = 150.0) -> list[dict[str, Any]]:
    """What rank 0 printed, line by line; other text is under "text"."""
    try:
        outputs = [process.communicate(timeout=timeout_s)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [code] * len(processes), "\n".join(outputs)
    return [json.loads(line) if line.startswith("{") else {"text": line} for line in outputs[0].splitlines()]


def train(folder: Path, plan: str, steps: int, *, count: int = 1, every: int | str = 2) -> list[dict[str, Any]]:
    """What rank 0 said of its training, without other text."""
    return [line for line in finish(start(folder, plan, steps, count=count, every=every)) if "text" not in line]
