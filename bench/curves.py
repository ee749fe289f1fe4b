"""Which part of the recipe `gpt` moves the loss, and by more than chance does?

The plain loop is trained with one part of the recipe at a time, on the same first weights and the same batches, and so
is the plain loop with first weights that are rounded to bf16: no worse, only different by as much as rounding is. What
that does to the loss is chance. Several seeds, since one says little. On a CPU with a small model, on a GPU with any.

    PYTHONPATH=src python -m bench.curves --seeds 8
    PYTHONPATH=src python -m bench.curves --size 350m --seeds 3
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.harness import Report, Table, tell
from bench.mfu import SETTINGS
from bench.programs.plain_gpt import Mlp, PlainGPT
from windlass.job import mlp
from windlass.job.adamw import NarrowAdamW, narrow_weights
from windlass.job.fp8 import apply_fp8
from windlass.job.losses import linear_cross_entropy
from windlass.job.process import init
from windlass.job.recipes.gpt import GPT, Settings, config_of, schedule_of
from windlass.job.tokens import TokenStream, made_up_tokens

DEEP = Settings(size="tiny", layers=12, batch=8, lr=3e-3, warmup=20)  # as deep as 124m, so that as much is summed up


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What an arm has of the recipe; nothing of it is the plain loop."""

    states: bool = False  # what blocks hand on is bf16
    loss: bool = False  # without whole logits
    weights: bool = False  # of blocks in bf16, updated in fp32, with gradients in bf16
    products: bool = False  # of the MLP with GELU inside them; the same as without on a CPU
    fp8: bool = False
    rounded: bool = False  # no part of the recipe: the first weights, to bf16


ARMS = {
    "plain": Parts(),
    "plain again": Parts(),
    "plain, first weights rounded": Parts(rounded=True),
    "states in bf16": Parts(states=True),
    "loss without whole logits": Parts(loss=True),
    "weights and gradients in bf16": Parts(weights=True),
    "GELU inside the products": Parts(products=True),
    "recipe": Parts(states=True, loss=True, weights=True, products=True),
    "recipe, states in fp32": Parts(loss=True, weights=True, products=True),
    "recipe, fp8": Parts(states=True, loss=True, weights=True, fp8=True),
}


class FusedMlp(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        return mlp.gelu_mlp(x, self.up.weight, self.down.weight)


class PartlyGPT(PlainGPT):
    parts = Parts()

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        if self.parts.states:
            x = x.bfloat16()
        for block in self.blocks.values():
            x = block(x)
        x = self.norm(x)
        if self.parts.loss:
            x = x.bfloat16()
            return linear_cross_entropy(x, self.head.weight.to(x.dtype, copy=True), targets)
        return functional.cross_entropy(self.head(x).flatten(0, 1).float(), targets.flatten())


def model_of(parts: Parts, settings: Settings, device: torch.device) -> PartlyGPT:
    config = config_of(settings)
    torch.manual_seed(settings.seed)
    first = GPT(config)
    names = ("layers", "heads", "width", "vocabulary", "context")
    model = PartlyGPT(**{name: getattr(config, name) for name in names})
    model.load_state_dict(first.state_dict())
    model.parts = parts
    with torch.no_grad():
        for parameter in model.parameters() if parts.rounded else ():
            parameter.copy_(parameter.bfloat16())
    if parts.products:
        for block in model.blocks.values():
            block.mlp.__class__ = FusedMlp
    if parts.fp8:
        apply_fp8(model.blocks.values())
    return model.to(device)


def losses_of(parts: Parts, settings: Settings, device: torch.device) -> list[float]:
    model = model_of(parts, settings, device)
    kind: type[torch.optim.Optimizer] = torch.optim.AdamW
    if parts.weights:
        narrow_weights(model.blocks.values())
        kind = NarrowAdamW
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = kind(groups, lr=settings.lr, betas=(0.9, 0.95))
    forward = torch.compile(model) if device.type == "cuda" else model
    lr_of, losses = schedule_of(settings), []
    for number, (inputs, targets) in enumerate(batches_of(settings, device)):
        for group in optimizer.param_groups:
            group["lr"] = lr_of(number)
        with torch.autocast(device.type, torch.bfloat16):
            loss = forward(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, settings.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    return torch.stack(losses).tolist()  # type: ignore[no-any-return]


def batches_of(settings: Settings, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    config = config_of(settings)
    length = config.context + 1
    tokens = made_up_tokens(settings.steps * settings.batch * length, config.vocabulary, settings.seed)
    batches = TokenStream([tokens], length).batches(batch=settings.batch, part=slice(None), seed=settings.seed)
    for inputs, targets in islice(batches, settings.steps):
        yield inputs.to(device), targets.to(device)


def gaps_of(curves: list[list[float]], plain: list[list[float]]) -> list[float]:
    """Of every seed: how far the mean of the last quarter is above that of the plain loop, as a share."""
    last = len(plain[0]) // 4
    pairs = [(statistics.mean(a[-last:]), statistics.mean(b[-last:])) for a, b in zip(curves, plain, strict=True)]
    return [ours / theirs - 1 for ours, theirs in pairs]


def render(curves: dict[str, list[list[float]]]) -> Table:
    rows = []
    for name, of_seeds in curves.items():
        gaps = gaps_of(of_seeds, curves["plain"])
        mean, spread = statistics.mean(gaps), statistics.stdev(gaps) if len(gaps) > 1 else 0.0
        final = statistics.mean(statistics.mean(curve[-len(curve) // 4 :]) for curve in of_seeds)
        error = spread / len(gaps) ** 0.5
        shares = [f"{100 * share:+.2f}%" for share in (mean, min(gaps), max(gaps))]
        rows.append([name, f"{final:.3f}", shares[0], f"{100 * error:.2f}%", *shares[1:]])
    header = ("arm", "loss", "above plain", "error of that", "least", "most")
    return Table(title="Loss of the last quarter, means over the seeds", header=header, rows=rows)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=[size for size in SETTINGS if size != "tiny"], help="default: small and deep")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first", type=int, default=1, help="the first seed, to divide the work")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--lr", type=float, help="default: as in bench.mfu")
    parser.add_argument("--arm", action="append", choices=list(ARMS), help="beside plain; default: all")
    parser.add_argument("--curves", type=Path, help="write all losses to this file, as JSON")
    given = parser.parse_args(arguments)
    torch.set_float32_matmul_precision("high")
    device = init().device
    base = replace(SETTINGS[given.size] if given.size else DEEP, steps=given.steps)
    base = replace(base, lr=given.lr or base.lr)
    arms = {name: ARMS[name] for name in dict.fromkeys(["plain", *(given.arm or ARMS)])}
    curves: dict[str, list[list[float]]] = {name: [] for name in arms}
    for seed in range(given.first, given.first + given.seeds):
        for name, parts in arms.items():
            began = time.perf_counter()
            curves[name].append(losses_of(parts, replace(base, seed=seed), device))
            above = gaps_of(curves[name][-1:], curves["plain"][-1:])[0]
            tell(f"seed {seed}, {name}: {100 * above:+.2f}% in {time.perf_counter() - began:.0f} s")
            gc.collect()
            torch.compiler.reset()
        if given.curves:
            given.curves.write_text(json.dumps(curves))
    report = Report(bench="curves", tables=[render(curves)])
    shape = f"{given.size or f'{DEEP.layers} layers, else {DEEP.size}'}, batch {base.batch}"
    report.notes.append(f"{shape}, lr {base.lr}, {given.steps} steps, {given.seeds} seeds, {device.type}.")
    print(report.render())


if __name__ == "__main__":
    main()
