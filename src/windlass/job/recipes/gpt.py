"""Decoder-only language models from a stream of tokens, in the style of GPT-2 or of Llama, under any plan.

    windlass run --recipe gpt --gpus 8 --plan shard=8,precision=bf16,compile -p size=1300m -p data=/data/tokens.bin
    python -m windlass.job.recipes.gpt     # tiny, alone, on whatever is here

Reads from top to bottom: shape, model, data, schedule, training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor, nn

from windlass.core.plan import ModelShape
from windlass.job.parallel.split import Cut, Split

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
    # Return the last states and the head's weight instead of logits, for a loss that never holds all logits at once.
    head_in_loss: bool = False

    def __post_init__(self) -> None:
        if self.style not in (GPT2, LLAMA):
            raise ValueError(f"unknown style {self.style!r}; options: {GPT2}, {LLAMA}")
        if self.width % self.heads:
            raise ValueError(f"width={self.width} is not divided by heads={self.heads}")
        if self.heads % self.groups:
            raise ValueError(f"heads={self.heads} is not divided by kv_heads={self.kv_heads}")

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
    def between(self) -> int:
        if self.hidden:
            return self.hidden
        # SwiGLU has three products where the others have two: two thirds as wide for as many parameters.
        return 4 * self.width if self.style == GPT2 else -(-8 * self.width // (3 * 128)) * 128


# ---- model -----------------------------------------------------------------------------------------------------------
# Written for one process, and so that a part of it works alone: nothing counts on all heads, all blocks, or on the
# modules before and after the blocks being here.


class Attention(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.head_width = config.head_width
        self.queries = config.heads // config.groups  # per key and value
        # By group: its queries, its key, its value. A part of the rows is whole groups.
        self.qkv = nn.Linear(config.width, config.groups * (self.queries + 2) * self.head_width, bias=config.bias)
        self.out = nn.Linear(config.width, config.width, bias=config.bias)
        self.rotary = Rotary(config) if config.style == LLAMA else None

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x)
        batch, length, _ = qkv.shape  # `x` may be a part of the sequence
        qkv = qkv.view(batch, length, -1, self.queries + 2, self.head_width)
        q, k, v = qkv.split((self.queries, 1, 1), dim=3)
        q, k, v = (part.reshape(batch, length, -1, self.head_width).transpose(1, 2) for part in (q, k, v))
        if self.rotary is not None:
            q, k = self.rotary(q), self.rotary(k)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.queries > 1)
        out: Tensor = self.out(attended.transpose(1, 2).reshape(batch, length, -1))
        return out


class Rotary(nn.Module):
    """Turns pairs of features by an angle that grows with the position."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: GPTConfig, base: float = 10_000.0) -> None:
        super().__init__()
        half = config.head_width // 2
        self.base = base
        self.register_buffer("cos", torch.empty(config.context, half), persistent=False)
        self.register_buffer("sin", torch.empty(config.context, half), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        half, device = self.cos.shape[1], self.cos.device
        speeds = self.base ** -(torch.arange(half, device=device, dtype=torch.float32) / half)
        angles = torch.arange(self.cos.shape[0], device=device, dtype=torch.float32)[:, None] * speeds
        self.cos.copy_(angles.cos())
        self.sin.copy_(angles.sin())

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[-2]
        cos, sin = self.cos[:length], self.sin[:length]
        a, b = x.float().chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Gelu(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.between, bias=config.bias)
        self.down = nn.Linear(config.between, config.width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.gelu(self.up(x), approximate="tanh"))
        return out


class SwiGlu(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.between, bias=config.bias)
        self.up = nn.Linear(config.width, config.between, bias=config.bias)
        self.down = nn.Linear(config.between, config.width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


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
        x = x + self.attention(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x


class GPT(nn.Module):
    """From tokens to logits; from hidden states, or to them, where the first or the last modules are None."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens: nn.Embedding | None = nn.Embedding(config.vocabulary, config.width)
        self.positions: nn.Embedding | None = (
            nn.Embedding(config.context, config.width) if config.style == GPT2 else None
        )
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
            if torch.is_autocast_enabled(x.device.type):
                # What blocks hand on is as wide as what they compute with; else it would be fp32 all the way.
                x = x.to(torch.get_autocast_dtype(x.device.type))
        for block in self.blocks.values():
            x = block(x)
        if self.norm is not None:
            x = self.norm(x)
        if self.head is None:
            return x
        if self.config.head_in_loss:
            return x, self.head.weight
        logits: Tensor = self.head(x)
        return logits

    def split(self) -> Split:
        config = self.config
        mlp = {"blocks.*.mlp.up": Cut.COLUMN, "blocks.*.mlp.down": Cut.ROW}
        if config.style == LLAMA:
            mlp["blocks.*.mlp.gate"] = Cut.COLUMN
        embeddings = ("tokens", "positions") if config.style == GPT2 else ("tokens",)
        return Split(
            tensor={
                **dict.fromkeys(embeddings, Cut.VOCABULARY),
                "blocks.*.norm1": Cut.NORM,
                "blocks.*.attention.qkv": Cut.COLUMN,
                "blocks.*.attention.out": Cut.ROW,
                "blocks.*.norm2": Cut.NORM,
                **mlp,
                "norm": Cut.NORM,
                "head": Cut.HEAD,
            },
            blocks="blocks",
            first=embeddings,
            last=("norm", "head"),
            shape=ModelShape(
                layers=config.layers,
                heads=config.heads,
                kv_heads=config.groups,
                sequence=config.context,
                tied=config.is_tied,
            ),
        )
