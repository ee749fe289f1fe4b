"""Pipeline parallelism: the stages of one process and the order in which they work through the microbatches."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from windlass.core.plan import InvalidPlan, Plan, Schedule
from windlass.job.parallel.batch import cut, tensors_of
from windlass.job.parallel.copies import divides_gradients, gathers_by_block
from windlass.job.parallel.mesh import group_of
from windlass.job.parallel.stages import stages_of

Loss = Callable[[Any, Any], Tensor]
_MOST_SCHEDULES = 3  # of a step, of an evaluation and of its last batch


class Pipeline:
    """This process's stages. `loss` must be such that the sum over microbatches is that of the whole batch."""

    def __init__(
        self, parts: Sequence[nn.Module], place: int, plan: Plan, mesh: DeviceMesh, device: torch.device, loss: Loss
    ) -> None:
        self._plan = plan
        self._parts = parts
        numbers = stages_of(place, plan)
        self.is_first = numbers[0] == 0
        self.is_last = numbers[-1] == plan.total_stages - 1
        self._numbers = numbers
        self._modules = [_Opaque(part) if divides_gradients(plan) else part for part in parts]
        self._device = device
        self._group = group_of(mesh, "pipeline")
        self._loss = loss
        self._targets: list[Any] = []  # of each microbatch
        # One for each shape, and for evaluation: what comes from other stages arrives in buffers that are made once.
        self._schedules: dict[Any, Any] = {}

    def step(self, inputs: Any, targets: Any) -> list[Tensor]:
        """Forward and backward of all microbatches; the losses, on the last stage's process."""
        losses: list[Tensor] = []
        count = self._plan.accumulate
        schedule = self._schedule("step", inputs, count)
        arguments = (inputs,) if self.is_first else ()
        schedule.step(*arguments, target=self._numbered(targets, count), losses=losses, **_QUIET)
        if not gathers_by_block(self._plan):
            for part in self._parts:
                if isinstance(part, FSDPModule):
                    part.reshard()
        return losses

    @torch.no_grad()
    def evaluate(self, inputs: Any, targets: Any) -> list[Tensor]:
        """With fewer microbatches than a step where `accumulate` does not divide the samples."""
        losses: list[Tensor] = []
        count = most_microbatches(inputs, targets, self._plan)
        schedule = self._schedule("evaluate", inputs, count)
        schedule.eval(*((inputs,) if self.is_first else ()), target=self._numbered(targets, count), losses=losses)
        return [loss * (self._plan.accumulate / count) for loss in losses]  # each is told as one of `accumulate`

    def _numbered(self, targets: Any, count: int) -> Tensor | None:
        """What the schedule cuts and hands to the loss: numbers of the microbatches. It could cut one tensor only."""
        if not self.is_last:
            return None
        self._targets = cut(targets, count)
        return torch.arange(count)

    def _loss_of(self, output: Any, number: Tensor) -> Tensor:
        return self._loss(output, self._targets[int(number)])

    def _schedule(self, kind: str, inputs: Any, count: int) -> Any:
        """All processes refuse what only the first one would hand in."""
        if not isinstance(inputs, Tensor):
            raise InvalidPlan(
                f"stages of a pipeline are given one tensor, and the inputs are of type {type(inputs).__name__}; put "
                "them into one tensor, or use a plan without `pipeline`. Targets may be tuples, lists and mappings"
            )
        key = kind, count, tuple(inputs.shape)
        if key not in self._schedules:
            if len(self._schedules) >= _MOST_SCHEDULES:
                self._schedules.clear()
            self._schedules[key] = self._build(count)
        return self._schedules[key]

    def _build(self, count: int) -> Any:
        # Stages of its own: buffers for evaluation ask for no gradients, and a step that shared them would get none.
        stages: list[Any] = [
            PipelineStage(module, number, self._plan.total_stages, self._device, group=self._group)
            for number, module in zip(self._numbers, self._modules, strict=True)
        ]
        # The loss is already a mean over the microbatches.
        options: dict[str, Any] = {"loss_fn": self._loss_of, "scale_grads": False}
        if self._plan.schedule is Schedule.INTERLEAVED:
            return ScheduleInterleaved1F1B(stages, count, **options)
        # With fewer microbatches than stages there is no steady state to alternate in, and both orders are the same.
        if self._plan.schedule is Schedule.GPIPE or count < self._plan.pipeline:
            return ScheduleGPipe(stages[0], count, **options)
        return Schedule1F1B(stages[0], count, **options)


def most_microbatches(inputs: Any, targets: Any, plan: Plan) -> int:
    """How many an evaluation has: at most `accumulate`, of as many samples each."""
    sizes = [tensor.shape[0] for value in (inputs, targets) for _, tensor in tensors_of(value, "") if tensor.dim()]
    rows = math.gcd(*sizes)
    interleaved = plan.schedule is Schedule.INTERLEAVED
    counts = (
        count
        for count in range(plan.accumulate, 0, -1)
        # The interleaved schedule works in rounds of as many as there are processes, or in one, all of one size.
        if rows % count == 0 and not (interleaved and count % max(1, count // plan.pipeline))
    )
    return next(counts)


class _Opaque(nn.Module):
    """Hides FSDP from the pipeline, which would keep gradients whole until the last microbatch."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part
        if isinstance(part, FSDPModule):
            part.set_is_last_backward(True)

    def forward(self, *args: Any) -> Any:
        return self.part(*args)


# Nobody wants the logits of a whole batch put together; older releases know no other way.
_QUIET: dict[str, Any] = (
    {"return_outputs": False} if "return_outputs" in inspect.signature(ScheduleGPipe.step).parameters else {}
)
