"""Small models for the tests of plans: one that says how it may be divided, one that says nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from windlass import job
from windlass.job.recipes.gpt import GPT, GPTConfig


def small_gpt(*, layers: int = 4, heads: int = 4, kv_heads: int = 2, tied: bool = False, seed: int = 0) -> GPT:
    torch.manual_seed(seed)
    return GPT(
        GPTConfig(
            style="llama",
            vocabulary=32,
            context=8,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            width=16,
            hidden=32,
            tied=tied,
        )
    )


def batch(samples: int = 8, *, seed: int = 1) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(32, (samples, 9), generator=torch.Generator().manual_seed(seed))
    return tokens[:, :-1], tokens[:, 1:]


class Plain(nn.Module):
    """A classifier that knows nothing of plans."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)))
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.layers(x))
        return out


class Residual(nn.Module):
    """The least that `tensor` and `pipeline` can divide."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x

    def split(self) -> job.Split:
        return job.Split(tensor={"blocks.*.0": job.Cut.COLUMN, "blocks.*.2": job.Cut.ROW}, blocks="blocks")
