"""For scripts of tests: a model with what several processes have whole, and how far a plan is from one process."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor, nn

from windlass import job
from windlass.job.weights import whole_weights

WORDS, WIDTH, HEADS = 32, 16, 4
STEPS = 4


class Block(nn.Module):
    def __init__(self, *, norms_heads: bool, scales: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.of_q, self.of_k = (nn.RMSNorm(WIDTH // HEADS) if norms_heads else nn.Identity() for _ in range(2))
        self.scale = nn.Parameter(torch.full((WIDTH,), 0.5)) if scales else None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for f in (self.q, self.k, self.v))
        seen = F.scaled_dot_product_attention(self.of_q(q), self.of_k(k), v, is_causal=True)
        made: Tensor = self.out(seen.transpose(1, 2).flatten(2))
        return x + made if self.scale is None else x + self.scale * made


class Model(nn.Module):
    """`has`: what is special about it."""

    def __init__(self, *has: str, **said: Any) -> None:
        super().__init__()
        self.has, self.said = has, said
        self.embed: nn.Embedding | None = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(norms_heads="head norms" in has, scales="scales" in has) for _ in range(4))
        self.head: nn.Linear | None = nn.Linear(WIDTH, WORDS, bias=False)
        self.places: nn.Parameter | None = nn.Parameter(torch.randn(8, WIDTH) / 8) if "places" in has else None
        if "gate" in has:
            self.gate = nn.Parameter(torch.ones(WIDTH), requires_grad="frozen" not in has)
        if "shared" in has:
            self.shared = nn.Linear(WIDTH, WIDTH)
        if "tied" in has:
            self.head.weight = self.embed.weight
        if "begins with zeros" in has:
            for block in self.blocks:
                nn.init.zeros_(block.get_submodule("out").weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        if self.embed is not None:
            x = self.embed(x)
            if "places" in self.has:
                assert self.places is not None
                x = x + self.places
        for block in self.blocks:
            x = block(x)
            x = x * self.gate if "gate" in self.has else x
            x = x + 0.1 * self.shared(x) if "shared" in self.has else x
        return x if self.head is None else self.head(x)

    def split(self) -> job.Split:
        tensor = {f"blocks.*.{name}": "column" for name in "qkv"} | {"blocks.*.out": "row"}
        tensor |= {"embed": "vocabulary", "head": "head"} | self.said.get("tensor", {})
        first = ("embed", *self.said.get("first", ()))
        table: Mapping[str, Any] = {name: cut for name, cut in tensor.items() if cut is not None}
        return job.Split(tensor=table, blocks="blocks", first=first, last=("head",))


def batch(step: int) -> tuple[Tensor, Tensor]:
    inputs = torch.randint(WORDS, (8, 8), generator=torch.Generator().manual_seed(step))
    return inputs, (inputs + 1) % WORDS


def distance(plan: str, *has: str, together: int = 1, **said: Any) -> float:
    """The largest difference of losses, norms and last weights to those of one process. Each step that is applied has
    `together` batches."""
    torch.manual_seed(0)
    model = Model(*has, **said)
    alone = copy.deepcopy(model)
    parallel = job.parallelize(model, plan)
    optimizer = job.optimizer(parallel, torch.optim.SGD, lr=0.5)
    plain = torch.optim.SGD(alone.parameters(), lr=0.5)
    rows = 8 // parallel.data_world
    part = slice(parallel.data_rank * rows, (parallel.data_rank + 1) * rows)
    far = []
    for step in range(STEPS):
        inputs, targets = batch(step)
        loss = F.cross_entropy(alone(inputs).flatten(0, 1), targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        far.append(abs(float(parallel.step(inputs[part], targets[part])) - float(loss.detach())))
        if (step + 1) % together == 0:
            norm = nn.utils.clip_grad_norm_(alone.parameters(), 1e9)
            far.append(abs(float(optimizer.step().grad_norm) - float(norm)))
            plain.step()
            optimizer.zero_grad()
            plain.zero_grad()
    weights = whole_weights(parallel)
    if weights is not None:
        expected = alone.state_dict()
        assert set(weights) == set(expected)
        far += [float((weights[name] - expected[name]).abs().max()) for name in expected]
    return max(far)


def tell(what: str, plan: str, *has: str, **said: Any) -> None:
    """Prints whether it learns as one process does, or how it is refused."""
    try:
        far = distance(plan, *has, **said)
        print(f"{what}: right" if far < 2e-5 else f"{what}: {far:.1e} from right")
    except job.InvalidPlan as refused:
        print(f"{what}: {refused}")
