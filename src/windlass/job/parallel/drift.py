"""Whether the ranks of a tensor group agree on the gradients of what each of them has whole.

One that works with a part of the heads or of the sequence has a part of the gradient only, and unless that is summed,
the copies of such a parameter drift apart without a word. Looked at in the first step that has gradients.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from windlass.core.plan import InvalidPlan, Plan, Precision
from windlass.job.parallel.norm import local
from windlass.job.parallel.split import Cut, Split
from windlass.job.parallel.stages import in_words
from windlass.job.parallel.tensor import is_divided, summed_names

_LOOKED_AT = 32  # elements, besides the norm
# Of the largest: what differs by less does so by the order of sums.
_ROUNDING = 1e-3
_ROUNDING_OF_HALF = 2e-2


class Drift:
    """Costs one small exchange in the first step. Only gradients that were all zero then, as behind a product that
    begins with zeros, are looked at again, in steps 2, 4, 8 and so on."""

    def __init__(self, parts: Sequence[nn.Module], split: Split, plan: Plan, group: Any, device: torch.device) -> None:
        self._plan, self._group, self._device = plan, group, device
        self._bound = _ROUNDING if plan.precision is Precision.FP32 else _ROUNDING_OF_HALF
        self._step = 0
        self._whole = dict(_named(parts))
        self._summed: dict[str, nn.Parameter] = {}
        for part in parts:
            for name in summed_names(part, split, sequence=plan.sequence):
                parameter = self._whole.pop(name, None)  # a frozen one is not among them
                if parameter is not None and _is_said_to_be_summed(name, part, split):
                    self._summed[name] = parameter
        self._is_done = False

    @torch.no_grad()
    def check(self) -> None:
        """InvalidPlan, on all processes, if ranks have other gradients than they should."""
        if self._is_done:
            return
        self._step += 1
        if self._step & (self._step - 1):
            return
        waiting = {**self._whole, **self._summed}
        drifting, doubled = [], []
        for name, differ in zip(waiting, self._compare(list(waiting.values())), strict=True):
            if differ is None:
                continue
            if name in self._whole and differ:
                drifting.append(name)
            elif name in self._summed and not differ:
                doubled.append(name)
            self._whole.pop(name, None)
            self._summed.pop(name, None)
        self._tell_all(_words(drifting, doubled, self._plan))

    def _compare(self, parameters: Sequence[nn.Parameter]) -> Iterator[bool | None]:
        """Of each parameter whether the gradients of the group's ranks differ; None where they tell nothing."""
        if not parameters:
            return
        mine = torch.stack([_look(parameter, self._device) for parameter in parameters])
        everyone = [torch.empty_like(mine) for _ in range(self._plan.tensor)]
        dist.all_gather(everyone, mine, group=self._group)
        for looks in torch.stack(everyone, dim=1).cpu():
            yield _differ(looks, self._bound)

    def _tell_all(self, words: str | None) -> None:
        """The groups of other stages and copies, too, so that every process says the same and goes on as long."""
        told: list[Any] = [None] * self._plan.world_size
        dist.all_gather_object(told, (words, bool(self._whole or self._summed)))
        refusals = [said for said, _ in told if said is not None]
        if refusals:
            raise InvalidPlan(refusals[0])
        self._is_done = not any(waits for _, waits in told)


def _named(parts: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Parameter]]:
    for part in parts:
        yield from ((n, p) for n, p in part.named_parameters() if p.requires_grad and not is_divided(p))


def _is_said_to_be_summed(name: str, part: nn.Module, split: Split) -> bool:
    """By SUMMED, which is wrong of what is used on the whole; NORM is never."""
    table = {pattern: cut for pattern, cut in split.tensor.items() if cut is Cut.SUMMED}
    return name in summed_names(part, Split(tensor=table), sequence=False)


def _look(parameter: nn.Parameter, device: torch.device) -> Tensor:
    """The norm of its gradient, and some elements at the same places on all ranks."""
    seen = torch.zeros(_LOOKED_AT + 1, device=device)
    if parameter.grad is not None:
        gradient = local(parameter.grad).flatten()
        places = range(gradient.numel())
        if len(places) > _LOOKED_AT:
            places = random.Random(0).sample(places, _LOOKED_AT)  # type: ignore[assignment]
        seen[0] = gradient.float().norm()
        seen[1 : len(places) + 1] = gradient[torch.tensor(places, device=gradient.device, dtype=torch.long)].float()
    return seen


def _differ(looks: Tensor, bound: float) -> bool | None:
    """`looks`: one row of each rank."""
    norms, elements = looks[:, 0], looks[:, 1:]
    largest = norms.max()
    if not looks.isfinite().all() or largest == 0:
        return None
    far = (elements - elements[0]).norm(dim=1).max()
    return bool((largest - norms.min() > bound * largest) | (far > bound * elements.norm(dim=1).max()))


def _words(drifting: Sequence[str], doubled: Sequence[str], plan: Plan) -> str | None:
    if drifting:
        divided = "heads, channels or positions" if plan.sequence else "heads or channels"
        return (
            f"the ranks of tensor={plan.tensor} have different gradients of {in_words(drifting)}: each uses it on its "
            f"own part of the {divided}, and its copies would drift apart. Name it, or the module that has it, in the "
            "table of split(): job.Cut.SUMMED for what is used on each rank's own heads (a norm of queries or keys), "
            "job.Cut.NORM for what `sequence` gives a part of the positions. If it is used on the whole, ranks have "
            "drawn different random numbers (dropout): begin with the same seed everywhere"
        )
    if doubled:
        return (
            f"the ranks of tensor={plan.tensor} all have the same gradient of {in_words(doubled)}, which split() calls "
            "SUMMED: each uses it on the whole, and their sum would be too large. Leave it out of the table, or take "
            "job.Cut.NORM for what `sequence` gives a part of the positions"
        )
    return None
