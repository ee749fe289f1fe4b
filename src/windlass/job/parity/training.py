"""The training that every plan does the same: the small GPT on a text that can be learned, with SGD and momentum.

SGD, because Adam divides by the gradient's size and so hides sums that should be means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from windlass.job.parallel.optimizer import Optimizer, optimizer
from windlass.job.parallel.parallelize import Parallel, parallelize
from windlass.job.parity.cases import BATCH, Case
from windlass.job.parity.measure import Footprint, count_sent_bytes, peak_memory, watch_state
from windlass.job.recipes.gpt import GPT, GPTConfig

LENGTH = 32
VOCABULARY = 64
CONFIG = GPTConfig(
    style="llama",
    vocabulary=VOCABULARY,
    context=LENGTH,
    layers=8,
    heads=8,
    kv_heads=4,
    width=64,
    hidden=128,
    tied=False,
)
_MEASURED_STEPS = 4  # memory in the first two, state in the third, bytes in the last


def train(case: Case, steps: int) -> tuple[list[float], Footprint]:
    """The loss of every step and of one evaluation, and what the plan took of memory and network."""
    footprint = Footprint()
    with peak_memory(footprint):
        torch.manual_seed(1234)
        parallel = parallelize(GPT(CONFIG), case.plan)
        trainer = _Trainer(parallel, optimizer(parallel, torch.optim.SGD, lr=0.05, momentum=0.9), case.fault)
        losses = [trainer.step(), trainer.step()]
    with watch_state(footprint, parallel, trainer.optimizer.inner):
        losses.append(trainer.step())
    losses.append(trainer.evaluate())  # amid the steps, which must go on as if nothing had been
    losses += [trainer.step() for _ in range(steps - _MEASURED_STEPS)]
    # In the last one, since some plans send less after a while.
    with count_sent_bytes(footprint):
        losses.append(trainer.step())
    return [float(loss) for loss in losses], footprint


class _Trainer:
    def __init__(self, parallel: Parallel, inner: Optimizer, fault: str | None) -> None:
        self.parallel = parallel
        self.optimizer = inner
        if fault is not None:
            FAULTS[fault](parallel)
        self._random = torch.Generator().manual_seed(99)

    def step(self) -> Tensor:
        loss = self.parallel.step(*self._batch())
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def evaluate(self) -> Tensor:
        return self.parallel.evaluate(*self._batch())

    def _batch(self) -> tuple[Tensor, Tensor]:
        """This process's part of the next batch."""
        tokens = next_batch(self._random)
        share = BATCH // self.parallel.data_world
        mine = tokens[self.parallel.data_rank * share :][:share]
        return mine[:, :-1], mine[:, 1:]


def next_batch(random: torch.Generator) -> Tensor:
    """Sequences that count on from a random start by a random stride, so that there is something to learn."""
    start = torch.randint(VOCABULARY, (BATCH, 1), generator=random)
    stride = torch.randint(1, 4, (BATCH, 1), generator=random)
    return (start + stride * torch.arange(LENGTH + 1)) % VOCABULARY


# Mistakes made on purpose, so that a test can see them found.


def _sum_gradients(parallel: Parallel) -> None:
    share = parallel._share_of_loss
    parallel._share_of_loss = lambda output, targets: share(output, targets) * parallel.data_world  # type: ignore[method-assign]


def _keep_gradients(parallel: Parallel) -> None:
    """Never exchange them, as a DDP that is left in `no_sync`."""
    copies: Any = parallel._copies[0]
    exchange = copies.microbatch
    copies.microbatch = lambda **_when: exchange(last=False)


FAULTS: dict[str, Callable[[Parallel], None]] = {"summed": _sum_gradients, "unsynchronised": _keep_gradients}
