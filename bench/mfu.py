"""On a machine with a GPU: how many tokens a second does the recipe `gpt` train on, against the loop that most people
write (torch.compile, autocast to bf16, fused AdamW, SDPA), and do both learn the same?

All arms begin with the same weights and read the same batches; they take turns, so that what slows the GPU for a while
slows all. Without a GPU `--size tiny` shows that it runs, and nothing else is taken. Prints JSON last.

    PYTHONPATH=src python -m bench.mfu --curves curves.json --arm recipe --arm fp8
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

from bench.harness import Figure, Report, Table, tell
from bench.programs.plain_gpt import PlainGPT
from windlass.core.plan import Plan, Precision
from windlass.job.flops import peak_flops
from windlass.job.process import init
from windlass.job.recipes.gpt import GPT, Settings, config_of, optimizer_of, parallel_of, schedule_of
from windlass.job.tokens import TokenStream, made_up_tokens

WARM_UP = 5  # steps before the first measured one: compilers and allocators are at work
ROUNDS = 7
STEPS = {"tiny": 2, "124m": 25, "350m": 12, "1300m": 6}  # a round
# Of the learning rate, longer than any arm runs: where it peaks early, losses jump, and after a jump two curves tell of
# chance alone.
WARM_STEPS = 200
SETTINGS = {
    "tiny": Settings(size="tiny", batch=4, lr=1e-3, warmup=WARM_STEPS),
    "124m": Settings(size="124m", batch=32, lr=6e-4, warmup=WARM_STEPS),
    "350m": Settings(size="350m", batch=32, lr=3e-4, warmup=WARM_STEPS),
    "1300m": Settings(size="1300m", batch=32, lr=2e-4, warmup=WARM_STEPS),
}
TARGETS = {"recipe": 0.005, "fp8": 0.02}  # how far a loss may be from the plain one, as a share
SHOWN = 8  # points of a loss curve in the table


Step = Callable[[Tensor, Tensor], Tensor]


@dataclass(slots=True, kw_only=True)
class Arm:
    step: Step
    batches: Iterator[tuple[Tensor, Tensor]]
    seconds: list[float] = field(default_factory=list)  # a step, of every round
    losses: list[Tensor] = field(default_factory=list)
    peak_bytes: int = 0

    def run(self, steps: int, device: torch.device) -> float:
        chosen = list(islice(self.batches, steps))  # on the device before the clock runs
        _wait(device)
        began = time.perf_counter()
        for inputs, targets in chosen:
            self.losses.append(self.step(inputs, targets))
        _wait(device)
        return (time.perf_counter() - began) / steps


def plain_arm(settings: Settings, device: torch.device, *, rounded: bool = False) -> Step:
    """The loop that is compared with, with the first weights that the recipe has, or with those rounded to bf16."""
    config = config_of(settings)
    names = ("layers", "heads", "width", "vocabulary", "context")
    plain = PlainGPT(**{name: getattr(config, name) for name in names}).to(device)
    torch.manual_seed(settings.seed)
    plain.load_state_dict(by_head(GPT(config).state_dict(), config.heads))
    parameters = list(plain.parameters())
    with torch.no_grad():
        for parameter in parameters if rounded else ():
            parameter.copy_(parameter.bfloat16())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.95), fused=True)
    forward = torch.compile(plain) if device.type == "cuda" else plain
    lr_of, done = schedule_of(settings), 0

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        nonlocal done
        for group in optimizer.param_groups:
            group["lr"] = lr_of(done)
        done += 1
        with torch.autocast(device.type, torch.bfloat16):
            loss = forward(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, settings.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def by_head(state: dict[str, Tensor], heads: int) -> dict[str, Tensor]:
    """The weights of queries, keys and values as the plain model has them: in one, head by head."""
    found = dict(state)
    for name in [name for name in state if name.endswith(".attention.q.weight")]:
        parts = [found.pop(name.replace(".q.", f".{kind}.")) for kind in "qkv"]
        split = [part.view(heads, -1, part.shape[1]) for part in parts]
        found[name.replace(".q.", ".qkv.")] = torch.stack(split, dim=1).flatten(0, 2)
    return found


def recipe_arm(settings: Settings, device: torch.device, precision: Precision) -> Step:
    parallel = parallel_of(settings, Plan(precision=precision, compile=device.type == "cuda"))
    optimizer = optimizer_of(parallel, settings)
    lr_of, done = schedule_of(settings), 0

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        nonlocal done
        for group in optimizer.param_groups:
            group["lr"] = lr_of(done)
        done += 1
        loss = parallel.step(inputs, targets)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


ARMS: dict[str, Callable[[Settings, torch.device], Step]] = {
    "plain": plain_arm,
    "recipe": partial(recipe_arm, precision=Precision.BF16),
    "fp8": partial(recipe_arm, precision=Precision.FP8),
    "rounded": partial(plain_arm, rounded=True),  # what chance does to a loss: no worse a start, only another one
}


def measure(size: str, settings: Settings, rounds: int, names: list[str]) -> dict[str, Arm]:
    device = init().device
    on_gpu = device.type == "cuda"
    config = config_of(settings)
    # All arms see as many tokens as there are, and no more: nothing is learned by heart.
    count = (WARM_UP + (rounds + 1) * STEPS[size]) * settings.batch * (config.context + 1)
    stream = TokenStream([made_up_tokens(count, config.vocabulary, settings.seed)], config.context + 1)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for pair in stream.batches(batch=settings.batch, part=slice(None), seed=settings.seed):
            yield pair[0].to(device), pair[1].to(device)

    arms = {name: Arm(step=ARMS[name](settings, device), batches=batches()) for name in names}
    for name, arm in arms.items():
        began = time.perf_counter()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        arm.run(WARM_UP, device)
        if on_gpu:
            arm.peak_bytes = torch.cuda.max_memory_allocated() - before
        tell(f"{size} {name}: ready in {time.perf_counter() - began:.0f} s")
    for number in range(rounds):
        for name, arm in arms.items():
            arm.seconds.append(arm.run(STEPS[size], device))
            tell(f"{size} round {number + 1}/{rounds} {name}: {arm.seconds[-1] * 1e3:.2f} ms a step")
    return arms


def gap(arms: dict[str, Arm], name: str) -> float:
    """How far the mean of the last quarter of this loss curve is from the plain one's, as a share."""
    last = len(arms["plain"].losses) // 4
    plain, other = (torch.stack(arms[which].losses[-last:]).float().mean().item() for which in ("plain", name))
    return abs(other - plain) / plain


def add_to(report: Report, size: str, settings: Settings, arms: dict[str, Arm], rows: list[list[object]]) -> None:
    config = config_of(settings)
    tokens = settings.batch * config.context
    with torch.device("meta"):
        flops = GPT(config).flops_per_token()
    peak = peak_flops(init().device, Precision.BF16)
    for name, arm in arms.items():
        speed = tokens / statistics.median(arm.seconds)
        used = f"{100 * speed * flops / peak:.1f}%" if peak else ""
        spread = max(arm.seconds) / min(arm.seconds) - 1
        rows.append([size, name, speed, used, f"{100 * spread:.1f}%", f"{arm.peak_bytes / 1e9:.0f}"])
    if "rounded" in arms:
        report.notes.append(f"Loss gap of {size} that chance alone makes: {gap(arms, 'rounded'):.4f}.")
    for name in (name for name in arms if name in TARGETS):
        pairs = zip(arms["plain"].seconds, arms[name].seconds, strict=True)
        ratio = statistics.median(plain / other for plain, other in pairs)
        what = size if name == "recipe" else f"{size}_{name}"
        report.figures[f"tokens_ratio_{what}"] = Figure(value=ratio, target=1.10, better="higher")
        report.figures[f"loss_gap_{what}"] = Figure(value=gap(arms, name), target=TARGETS[name], better="lower")
    count = len(arms["plain"].losses)
    points = [1 + (count - 1) * number // (SHOWN - 1) for number in range(SHOWN)]
    report.tables.append(
        Table(
            title=f"Loss of {size} at step",
            header=("arm", *(str(point) for point in points)),
            rows=[[name, *(f"{float(arm.losses[p - 1]):.3f}" for p in points)] for name, arm in arms.items()],
        )
    )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--size", action="append", choices=list(STEPS), help="default: all but tiny")
    parser.add_argument("--batch", type=int, help="sequences a step, in all arms; default: 32")
    parser.add_argument("--arm", action="append", choices=list(ARMS), help="beside plain; default: recipe")
    parser.add_argument("--curves", type=Path, help="write all losses to this file, as JSON")
    given = parser.parse_args(arguments)
    sizes = given.size or [size for size in STEPS if size != "tiny"]
    if not torch.cuda.is_available() and sizes != ["tiny"]:
        sys.exit(f"mfu: a GPU is needed for {', '.join(sizes)}, and PyTorch finds none; --size tiny shows that it runs")
    torch.set_float32_matmul_precision("high")
    report, rows, curves = Report(bench="mfu"), [], {}
    names = list(dict.fromkeys(["plain", *(given.arm or ["recipe"])]))
    speeds = Table(
        title="Tokens a second, share of the GPU's 989 TFLOP/s in bf16, slowest round over fastest, memory",
        header=("size", "arm", "tokens/s", "MFU", "spread", "GB"),
        rows=rows,
    )
    report.tables.append(speeds)
    for size in sizes:
        settings = replace(SETTINGS[size], batch=given.batch or SETTINGS[size].batch)
        arms = measure(size, settings, rounds=3 if given.quick else ROUNDS, names=names)
        add_to(report, size, settings, arms, rows)
        curves[size] = {name: [round(float(loss), 5) for loss in arm.losses] for name, arm in arms.items()}
        if given.curves:
            given.curves.write_text(json.dumps(curves))
        del arms
        gc.collect()
        torch.compiler.reset()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    report.notes.append(
        f"Sequences of 1,024 tokens, {given.batch or 32} a step in all arms, 50,304 words, tied head, gradients "
        "clipped at 1. Medians of rounds that alternate. MFU counts 6 operations per parameter and token and 12 per "
        "layer, width and position."
    )
    print(report.render())


if __name__ == "__main__":
    main()
