"""Decoder-only language models from a stream of tokens, in the style of GPT-2 or of Llama, under any plan.

    windlass run --recipe gpt                                   # tiny, on words made up on the spot, in seconds
    windlass run --recipe gpt --gpus 8 --plan shard=8,precision=bf16,compile -p size=1300m -p data=/data/tokens
    python -m windlass.job.recipes.gpt                          # alone, on whatever is here

`data` is a file or a folder of 16- or 32-bit tokens (.bin, .u16, .u32, .npy), or a text, read as bytes. Reads from top
to bottom: settings, shape, model, loss, optimizer, training.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor, nn

from windlass import job
from windlass.core.errors import InvalidInput
from windlass.core.names import unknown
from windlass.core.plan import ModelShape, Plan, Precision
from windlass.core.settings import Count, NotNegative, Positive, Share, Whole
from windlass.job import mlp
from windlass.job.adamw import NarrowAdamW, narrow_weights
from windlass.job.flops import multiplied_parameters, training_flops_per_token
from windlass.job.layers import narrowed
from windlass.job.losses import linear_cross_entropy
from windlass.job.parallel.optimizer import Optimizer
from windlass.job.parallel.parallelize import Parallel, cross_entropy
from windlass.job.parallel.split import Cut, Split
from windlass.job.products import added_linear, joint_linear
from windlass.job.refusals import run_recipe
from windlass.job.rotary import Rotary
from windlass.job.schedule import warm_cosine
from windlass.job.settings import settings_of
from windlass.job.tokens import TokenStream, held_apart, made_up_tokens, open_tokens
from windlass.job.weights import whole_weights

# ---- settings: from the run's params, with defaults that fit a laptop ------------------------------------------------

BYTES = 256  # the vocabulary of a text read as bytes
SIZES: dict[str, dict[str, int]] = {
    "tiny": {"layers": 2, "heads": 4, "width": 64, "context": 64, "vocabulary": 512},
    "124m": {"layers": 12, "heads": 12, "width": 768},
    "350m": {"layers": 24, "heads": 16, "width": 1024},
    "1300m": {"layers": 24, "heads": 16, "width": 2048},
    "7b": {"layers": 32, "heads": 32, "width": 4096, "context": 4096},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    size: Literal["tiny", "124m", "350m", "1300m", "7b"] = "tiny"  # of the model; null below: as the size has it
    style: Literal["gpt2", "llama"] = "gpt2"
    layers: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None  # fewer than heads: several queries share a key and a value
    width: Count | None = None  # of the states; a multiple of heads
    context: Count | None = None  # tokens of a sample
    vocabulary: Count | None = None  # tokens there are
    tied: bool | None = None  # one weight for embedding and head; null: as the style has it, but not in a pipeline
    data: str | None = None  # a file or folder of tokens, or a text; null: words made up on the spot
    held_out: Share = 0.05  # of every file's end, kept aside for evaluation
    steps: Count = 100
    batch: Count = 16  # sequences per step, of all processes together
    lr: Positive = 1e-3
    last_lr: Share = 0.1  # where half a cosine ends, as a share of lr
    warmup: Whole = 20  # steps, straight up to lr
    weight_decay: NotNegative = 0.1  # of matrices only
    clip: Positive | None = 1.0  # the largest norm of gradients, where the plan has none
    evaluate_every: Count = 50  # steps
    evaluate_batches: Count = 4
    seed: Whole = 1  # of first weights, made-up words and the order of samples


# ---- shape -----------------------------------------------------------------------------------------------------------

GPT2, LLAMA = "gpt2", "llama"


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTConfig:
    """`gpt2`: learned positions, LayerNorm, GELU. `llama`: rotary positions, RMSNorm, SwiGLU."""

    style: str = GPT2
    vocabulary: int = 50304  # GPT-2's 50,257, rounded up to what matrix units like
    context: int = 1024
    layers: int = 12
    heads: int = 12
    kv_heads: int | None = None  # fewer than heads: several queries share a key and a value
    width: int = 768
    hidden: int | None = None  # width between a block's two products
    bias: bool = False
    tied: bool | None = None  # one weight for embedding and head; None: as the style has it

    def __post_init__(self) -> None:
        if self.style not in (GPT2, LLAMA):
            raise InvalidInput(unknown("style", self.style, (GPT2, LLAMA)))
        if self.width % self.heads:
            raise InvalidInput(
                f"width={self.width} is not divided by heads={self.heads}; numbers that do: {_divisors(self.width)}"
            )
        if self.heads % self.groups:
            raise InvalidInput(
                f"heads={self.heads} is not divided by kv_heads={self.kv_heads}; numbers that do: "
                f"{_divisors(self.heads)}"
            )
        if self.style == LLAMA and self.head_width % 2:
            raise InvalidInput(
                f"width={self.width} and heads={self.heads} make heads of width {self.head_width}, which rotary "
                "positions (style=llama) cannot halve; give a width that 2 × heads divides"
            )

    @property
    def groups(self) -> int:
        return self.kv_heads or self.heads

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def is_tied(self) -> bool:
        return self.style == GPT2 if self.tied is None else self.tied

    @property
    def shape(self) -> ModelShape:
        return ModelShape(
            layers=self.layers, heads=self.heads, kv_heads=self.groups, sequence=self.context, tied=self.is_tied
        )

    @property
    def between(self) -> int:
        if self.hidden:
            return self.hidden
        # SwiGLU has three products where the others have two: two thirds as wide for as many parameters.
        return 4 * self.width if self.style == GPT2 else -(-8 * self.width // (3 * 128)) * 128


def _divisors(number: int) -> str:
    return ", ".join(str(divisor) for divisor in range(1, number + 1) if number % divisor == 0)


def config_of(settings: Settings, plan: Plan | str = "") -> GPTConfig:
    if settings.size not in SIZES:
        raise InvalidInput(unknown("size", settings.size, SIZES))
    names = ("layers", "heads", "kv_heads", "width", "context", "vocabulary")
    given = {name: value for name in names if (value := getattr(settings, name)) is not None}
    if settings.data is not None and Path(settings.data).suffix == ".txt":
        given.setdefault("vocabulary", BYTES)
    tied = settings.tied
    if tied is None and isinstance(plan, Plan) and plan.pipeline > 1:
        tied = False  # the two ends are on different processes
    return GPTConfig(style=settings.style, tied=tied, **{**SIZES[settings.size], **given})


def shape_of(settings: Settings, plan: Plan | str) -> ModelShape:
    """For the server, which has no torch and holds plans against it when runs are submitted."""
    return config_of(settings, plan).shape


# ---- model -----------------------------------------------------------------------------------------------------------
# Written for one process, and so that a part of it works alone: nothing counts on all heads, all blocks, or on the
# modules before and after the blocks being here. What a part makes of `x` is added to the `states` by its last product.


class Attention(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.head_width = config.head_width
        self.shares_keys = config.groups < config.heads
        self.q = nn.Linear(config.width, config.width, bias=config.bias)
        self.k = nn.Linear(config.width, config.groups * self.head_width, bias=config.bias)
        self.v = nn.Linear(config.width, config.groups * self.head_width, bias=config.bias)
        self.out = nn.Linear(config.width, config.width, bias=config.bias)
        self.rotary = Rotary(config.head_width, config.context) if config.style == LLAMA else None

    def forward(self, x: Tensor, states: Tensor) -> Tensor:
        parts = joint_linear(x, self.q, self.k, self.v)
        # `x` may be a part of the sequence, and the heads those of one process.
        q, k, v = (part.view(*part.shape[:2], -1, self.head_width).transpose(1, 2) for part in parts)
        if self.rotary is not None:
            q, k = self.rotary(q), self.rotary(k)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.shares_keys)
        return added_linear(attended.transpose(1, 2).flatten(2), self.out, states)


class Gelu(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.between, bias=config.bias)
        self.down = nn.Linear(config.between, config.width, bias=config.bias)

    def forward(self, x: Tensor, states: Tensor) -> Tensor:
        if mlp.fuses(x, self.up, self.down):
            return mlp.gelu_mlp(x, self.up.weight, self.down.weight, states)
        return added_linear(F.gelu(self.up(x), approximate="tanh"), self.down, states)


class SwiGlu(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.between, bias=config.bias)
        self.up = nn.Linear(config.width, config.between, bias=config.bias)
        self.down = nn.Linear(config.between, config.width, bias=config.bias)

    def forward(self, x: Tensor, states: Tensor) -> Tensor:
        return added_linear(F.silu(self.gate(x)) * self.up(x), self.down, states)


class RmsNorm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        # Autocast leaves it alone, and the fused implementation wants one type for both.
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def norm(config: GPTConfig) -> nn.Module:
    if config.style == GPT2:
        return nn.LayerNorm(config.width, bias=config.bias)
    return RmsNorm(config.width, eps=1e-5)


class Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm1, self.attention = norm(config), Attention(config)
        self.norm2, self.mlp = norm(config), Gelu(config) if config.style == GPT2 else SwiGlu(config)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention(self.norm1(x), x)
        out: Tensor = self.mlp(self.norm2(x), x)
        return out


class GPT(nn.Module):
    """From tokens to logits; from hidden states, or to them, where the first or the last modules are None."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        # Return the last states and the head's weight instead of logits, for a loss that never holds all of those.
        self.head_in_loss = False
        self.tokens: nn.Embedding | None = nn.Embedding(config.vocabulary, config.width)
        learned = config.style == GPT2
        self.positions: nn.Embedding | None = nn.Embedding(config.context, config.width) if learned else None
        self.blocks = nn.ModuleDict({str(i): Block(config) for i in range(config.layers)})
        self.norm: nn.Module | None = norm(config)
        self.head: nn.Linear | None = nn.Linear(config.width, config.vocabulary, bias=False)
        self.tie()
        self.reset_parameters()

    def tie(self) -> None:
        """Make head and embedding one weight again, after something that gave each a new one."""
        if self.config.is_tied and self.head is not None and self.tokens is not None:
            self.head.weight = self.tokens.weight

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the first weights. Also for a model made on the device `meta`, once it has memory."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                # What is added to the residual stream, once per product, adds up to the same scale at any depth.
                added = name.endswith((".out", ".down"))
                nn.init.normal_(module.weight, std=0.02 / math.sqrt(2 * self.config.layers) if added else 0.02)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.LayerNorm | nn.RMSNorm | Rotary):
                module.reset_parameters()

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        if self.tokens is not None:
            places = torch.arange(x.shape[1], device=x.device)[None]  # with a first dimension, to be cut as `x` is
            x = self.tokens(x)
            if self.positions is not None:
                x = x + self.positions(places)
            x = narrowed(x)  # what blocks hand on is as wide as what they compute with, not fp32 all the way
        for block in self.blocks.values():
            x = block(x)
        if self.norm is not None:
            x = self.norm(x)
        if self.head is None:
            return x
        if self.head_in_loss:
            # A copy, because the weight itself may be gone when the loss is computed (shard, zero=3).
            x = narrowed(x)
            return x, self.head.weight.to(x.dtype, copy=True)
        logits: Tensor = self.head(x)
        return logits

    def flops_per_token(self) -> float:
        config = self.config
        return training_flops_per_token(
            multiplied_parameters([self]), layers=config.layers, width=config.width, sequence=config.context
        )

    def split(self) -> Split:
        config = self.config
        between = ("gate", "up") if config.style == LLAMA else ("up",)
        embeddings = ("tokens", "positions") if config.style == GPT2 else ("tokens",)
        return Split(
            tensor={
                **dict.fromkeys(embeddings, Cut.VOCABULARY),
                "blocks.*.norm1": Cut.NORM,
                **{f"blocks.*.attention.{name}": Cut.COLUMN for name in ("q", "k", "v")},
                "blocks.*.attention.out": Cut.ROW,
                "blocks.*.norm2": Cut.NORM,
                **{f"blocks.*.mlp.{name}": Cut.COLUMN for name in between},
                "blocks.*.mlp.down": Cut.ROW,
                "norm": Cut.NORM,
                "head": Cut.HEAD,
            },
            blocks="blocks",
            first=embeddings,
            last=("norm", "head"),
            shape=config.shape,
        )


# ---- loss and optimizer ----------------------------------------------------------------------------------------------


def loss_of(output: Tensor | tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    """From logits, or from the last states and the head's weight."""
    return linear_cross_entropy(*output, targets) if isinstance(output, tuple) else cross_entropy(output, targets)


def optimizer_of(parallel: Parallel, settings: Settings) -> Optimizer:
    """AdamW; only what is multiplied with is drawn towards zero, not norms and biases."""
    alone = parallel.plan.world_size == 1 and parallel.device.type == "cuda"
    kind: type[torch.optim.Optimizer] = torch.optim.AdamW
    if alone and parallel.plan.precision in (Precision.BF16, Precision.FP8) and parallel.plan.accumulate == 1:
        narrow_weights(block for part in parallel.parts for block in part.get_submodule("blocks").children())
        kind = NarrowAdamW
    parameters = list(parallel.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return job.optimizer(parallel, kind, params=groups, lr=settings.lr, betas=(0.9, 0.95))


def schedule_of(settings: Settings) -> Callable[[int], float]:
    return warm_cosine(settings.lr, steps=settings.steps, warmup=settings.warmup, last=settings.last_lr)


# ---- training --------------------------------------------------------------------------------------------------------


def parallel_of(settings: Settings, plan: Plan | str) -> Parallel:
    """The model, spread. The same first weights everywhere, and by whatever plan."""
    torch.manual_seed(settings.seed)
    model = GPT(config_of(settings, plan))
    parallel = job.parallelize(model, plan, loss=loss_of, batch=settings.batch)
    # Afterwards, since only then a plan that the planner chooses is there.
    parallel.plan = replace(parallel.plan, clip=parallel.plan.clip or settings.clip)
    model.head_in_loss = parallel.plan.tensor == parallel.plan.pipeline == 1
    return parallel


def streams_of(settings: Settings, config: GPTConfig) -> tuple[TokenStream, TokenStream]:
    """What is learned from, and what is kept aside."""
    length = config.context + 1
    if settings.data is None:
        files = [made_up_tokens(max(200_000, 100 * length), config.vocabulary, settings.seed)]
    else:
        files = open_tokens(Path(settings.data), config.vocabulary)
    training, held_out = held_apart(files, settings.held_out, length)
    return TokenStream(training, length, config.vocabulary), TokenStream(held_out, length, config.vocabulary)


def train(settings: Settings, parallel: Parallel, optimizer: Optimizer) -> float:
    """From the first step, or from the newest checkpoint of the run; the loss on what was kept aside, at the end."""
    config: GPTConfig = parallel.parts[0].config  # type: ignore[assignment]
    training, held_out = streams_of(settings, config)
    each = parallel.plan.check_batch(settings.batch) * parallel.plan.accumulate
    part = slice(parallel.data_rank * each, (parallel.data_rank + 1) * each)
    if job.is_main:
        print(f"{settings.style} {settings.size}, {len(training):,} tokens, plan {parallel.plan}", flush=True)

    def evaluate() -> float:
        batches = held_out.batches(batch=settings.batch, part=part, seed=settings.seed)
        losses = [parallel.evaluate(*batch) for batch in islice(batches, settings.evaluate_batches)]
        return float(torch.stack(losses).mean())

    lr_of = schedule_of(settings)
    keeps = job.session().keeps_checkpoints
    unseen = math.nan
    with job.checkpoints(model=parallel, optimizer=optimizer) if keeps else nullcontext() as saved:
        first = saved.first_step if saved is not None else 0
        # What a step reads is known from its number: there is no other position in the data.
        batches = training.batches(batch=settings.batch, part=part, seed=settings.seed, first=first)
        left = max(0, settings.steps - first)
        meter = job.steps(parallel, total=settings.steps, first=first, tokens_per_step=settings.batch * config.context)
        for inputs, targets in islice(job.loader(batches, parallel.device), left):
            for group in optimizer.param_groups:
                group["lr"] = lr_of(meter.number)
            loss = parallel.step(inputs, targets)
            report = optimizer.step()
            optimizer.zero_grad()
            step = meter.done(loss, report, lr=lr_of(meter.number))
            if step % settings.evaluate_every == 0 or step == settings.steps:
                with meter.pause():
                    unseen = evaluate()
                if job.is_main:
                    job.log(step, total=settings.steps, held_out_loss=unseen)
                    print(f"step {step}: loss {float(loss):.4f}, {unseen:.4f} on what it has not seen", flush=True)
            if saved is not None:
                saved.step(step)
    return unseen if left else evaluate()


def main() -> float:
    """The loss on what was kept aside, at the end."""
    settings = settings_of(Settings)
    job.init()
    torch.set_float32_matmul_precision("high")
    parallel = parallel_of(settings, job.plan)
    optimizer = optimizer_of(parallel, settings)
    unseen = train(settings, parallel, optimizer)
    weights = whole_weights(parallel, optimizer=optimizer)
    if weights is not None:
        config: GPTConfig = parallel.parts[0].config  # type: ignore[assignment]
        torch.save({"weights": weights, "config": asdict(config)}, job.output_dir / "model.pt")
    return unseen


if __name__ == "__main__":
    run_recipe(main)
