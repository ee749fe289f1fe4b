"""On a machine with a GPU: what do `job.steps` and `job.loader` cost a training loop, and are their numbers right?

The same model and optimizer step in windows that alternate between a loop written by hand (pinned batches, copies that
do not block), the same with the loader, and with loader and meter. Checks the figures against things that are known: a
source that is too slow, a loss that is no number, a profile. Needs nothing but Python and PyTorch; prints JSON last.

    PYTHONPATH=src python bench/gpu_accounting.py [--seconds 40] [--device cpu]
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from windlass import job
from windlass.core.plan import Precision
from windlass.job.accounting.anomaly import SickStep
from windlass.job.accounting.meter import Steps
from windlass.job.flops import multiplied_parameters, peak_flops, training_flops_per_token

STEPS = 60  # a window


class Loop:
    def __init__(self, device: torch.device, width: int, batch: int) -> None:
        torch.manual_seed(0)
        self.device, self.batch = device, batch
        layers = [layer for _ in range(8) for layer in (nn.Linear(width, width), nn.GELU())]
        self.model = nn.Sequential(*layers).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        pin = device.type == "cuda"
        self.source = [torch.randn(batch, width, pin_memory=pin) for _ in range(8)]

    def train(self, inputs: Tensor, *, spoil: float = 1.0) -> tuple[Tensor, Tensor]:
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = (self.model(inputs) - inputs).square().mean() * spoil
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach(), norm

    def settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def by_hand(self) -> float:
        """Steps a second."""
        self.settle()
        began = time.perf_counter()
        for number in range(STEPS):
            loss, _ = self.train(self.source[number % 8].to(self.device, non_blocking=True))
        float(loss)
        return STEPS / (time.perf_counter() - began)

    def helped(self, batches: Iterator[Tensor], meter: Steps | None) -> float:
        self.settle()
        began = time.perf_counter()
        for inputs in itertools.islice(batches, STEPS):
            loss, norm = self.train(inputs)
            if meter is not None:
                meter.done(loss, norm, lr=1e-5)
        self.settle()
        return STEPS / (time.perf_counter() - began)


def check_waiting(loop: Loop) -> tuple[float, float]:
    """Seconds a step that a source is slower than the model, and that the meter says the loop waited."""
    slow_s = 0.05

    def slow() -> Iterator[Tensor]:
        for number in range(30):
            time.sleep(slow_s)
            yield loop.source[number % 8]

    meter = job.steps(loop.model, total=30, every=10)
    for inputs in job.loader(slow(), loop.device):
        meter.done(*loop.train(inputs))
    return job.last()["step_s"], job.last()["data_wait_s"]


def check_stop(loop: Loop) -> int:
    """After how many steps a loss that is no number in the fifth one has stopped the loop."""
    meter = job.steps(loop.model, on_nan="stop")
    for number in range(1, 20):
        loss, norm = loop.train(loop.source[0].to(loop.device), spoil=math.nan if number == 5 else 1.0)
        try:
            meter.done(loss, norm)
        except SickStep:
            return number
    return -1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    device = torch.device(given.device, 0) if given.device == "cuda" else torch.device(given.device)
    loop = Loop(device, 4096, 4096) if device.type == "cuda" else Loop(device, 64, 32)
    flops = training_flops_per_token(multiplied_parameters([loop.model]))
    meter = job.steps(loop.model, samples_per_step=loop.batch, tokens_per_step=loop.batch, flops_per_token=flops)
    batches = iter(job.loader(itertools.cycle(loop.source), device))
    bare: list[float] = []
    loaded: list[float] = []
    metered: list[float] = []
    loop.helped(batches, meter)
    until = time.perf_counter() + given.seconds
    while time.perf_counter() < until:
        with meter.pause():
            bare.append(loop.by_hand())
            loaded.append(loop.helped(batches, None))
        metered.append(loop.helped(batches, meter))
        with meter.pause():
            loaded[-1] = (loaded[-1] + loop.helped(batches, None)) / 2
    logged = job.last()
    peak = peak_flops(device, Precision.BF16)
    by_hand_mfu = statistics.median(metered) * loop.batch * flops / peak if peak else None
    loss, norm = loop.train(loop.source[0].to(device))
    meter.done(loss, norm)
    meter.close()
    with tempfile.TemporaryDirectory() as folder, job.profile(steps=3, warmup=2, folder=folder) as profile:
        for inputs in profile.over(itertools.islice(batches, 10)):
            loop.train(inputs)
        print((Path(folder) / "rank-0.txt").read_text())
        trace_bytes = (Path(folder) / "rank-0.trace.json.gz").stat().st_size
    step_s, data_wait_s = check_waiting(loop)
    print(
        json.dumps(
            {
                "bench": "gpu_accounting",
                "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
                "meter_ratio": round(statistics.median(a / b for a, b in zip(metered, loaded, strict=True)), 5),
                "loader_ratio": round(statistics.median(a / b for a, b in zip(loaded, bare, strict=True)), 5),
                "windows": len(bare),
                "ms_per_step": round(1000 / statistics.median(bare), 3),
                "mfu_by_hand": by_hand_mfu and round(by_hand_mfu, 4),
                "logged": {name: float(f"{value:.4g}") for name, value in sorted(logged.items())},
                "slow_source": {"step_s": round(step_s, 4), "data_wait_s": round(data_wait_s, 4)},
                "stopped_after": check_stop(loop),
                "trace_bytes": trace_bytes,
            }
        )
    )


if __name__ == "__main__":
    main()
