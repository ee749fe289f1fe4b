"""Gradients that arise in parts on several processes, of parameters that each of these has whole: put together here.

Such are parameters that all stages of a pipeline have, and under `tensor` those that each process uses on its own heads
or its own part of the sequence.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from windlass.core.plan import Plan
from windlass.job.parallel.drift import Drift
from windlass.job.parallel.mesh import group_of
from windlass.job.parallel.norm import local, mark_in_all_stages, settle_gradients
from windlass.job.parallel.split import Split
from windlass.job.parallel.tensor import summed_names


class Gradients:
    """Of all `parts` of one process, once the plan is applied to them."""

    def __init__(
        self,
        parts: Sequence[nn.Module],
        split: Split,
        plan: Plan,
        mesh: DeviceMesh | None,
        device: torch.device,
        *,
        in_all_stages: Sequence[str],
    ) -> None:
        self._device = device
        self._sums: list[tuple[list[nn.Parameter], Any]] = []  # and the processes whose gradients add up
        self._drift: Drift | None = None
        if mesh is None:
            return
        if in_all_stages:
            repeated = [part.get_parameter(name) for part in parts for name in in_all_stages]
            for parameter in repeated:
                mark_in_all_stages(parameter)
            self._sums.append((repeated, group_of(mesh, "pipeline")))
        if plan.tensor > 1:
            names = [summed_names(part, split, sequence=plan.sequence) for part in parts]
            summed = [part.get_parameter(name) for part, mine in zip(parts, names, strict=True) for name in mine]
            self._sums.append((summed, group_of(mesh, "tensor")))
            self._drift = Drift(parts, split, plan, group_of(mesh, "tensor"), device)

    @contextlib.contextmanager
    def of_step(self) -> Iterator[None]:
        """Around forward and backward. Gradients that are there before, of a step not yet applied, are whole."""
        before = {parameter: parameter.grad for parameters, _ in self._sums for parameter in parameters}
        for parameter in before:
            parameter.grad = None
        yield
        if self._drift is not None:
            self._drift.check()
        with torch.no_grad():
            for parameters, group in self._sums:
                self._add_up([parameter for parameter in parameters if parameter.requires_grad], group)
            for parameter, earlier in before.items():
                if earlier is not None:
                    parameter.grad = earlier if parameter.grad is None else earlier + parameter.grad

    def _add_up(self, parameters: list[nn.Parameter], group: Any) -> None:
        settle_gradients(parameters)
        alike: dict[torch.dtype, list[Tensor]] = defaultdict(list)
        for parameter in parameters:
            if parameter.grad is None:  # not used here, but perhaps by another one
                parameter.grad = torch.zeros_like(parameter)
            alike[parameter.grad.dtype].append(local(parameter.grad))
        for gradients in alike.values():
            flat = torch.cat([gradient.flatten() for gradient in gradients]).to(self._device)  # some are offloaded
            dist.all_reduce(flat, group=group)
            sizes = [gradient.numel() for gradient in gradients]
            for gradient, whole in zip(gradients, torch.split(flat, sizes), strict=True):
                gradient.copy_(whole.view_as(gradient))
