"""`parallelize`: a plain model becomes a `Parallel` one, spread over the processes of the run as its plan says.

The model knows nothing of it. Order matters: cut into stages, divide products, recompute, compile, then copy and shard.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional

from windlass.core.plan import InvalidPlan, Plan, Precision
from windlass.job.accounting.health import Health
from windlass.job.failures import begin_evaluation, begin_step
from windlass.job.fp8 import apply_fp8
from windlass.job.parallel.agreement import (
    Rows,
    agree_on_model,
    agree_on_seed,
    check_batches,
    is_read_twice,
    share_weights,
    tell_batch,
)
from windlass.job.parallel.batch import check_rows, cut, rows_of
from windlass.job.parallel.choice import choose
from windlass.job.parallel.copies import Copies, apply_copies
from windlass.job.parallel.mesh import build_mesh, place_of
from windlass.job.parallel.pipeline import Loss, Pipeline
from windlass.job.parallel.precision import LossScale, autocast, check_precision
from windlass.job.parallel.recompute import apply_recompute, check_recompute
from windlass.job.parallel.sharding import check_sharding
from windlass.job.parallel.split import Split
from windlass.job.parallel.stages import check_stages, cut_stage, names_in_all_stages, stages_of
from windlass.job.parallel.sums import Gradients
from windlass.job.parallel.tensor import apply_tensor, check_tensor
from windlass.job.parallel.units import blocks_of, split_of
from windlass.job.prefetch import moved
from windlass.job.process import Process, init
from windlass.job.products import apply_fastest
from windlass.job.session import session

_SAME_DATA = (
    "ranks begin with the same batch, so they learn from the same samples: each is to read its own part "
    "(parallel.data_rank of parallel.data_world), as a DataLoader does with "
    "batch_sampler=job.order(..., parallel=parallel) or sampler=DistributedSampler(data, parallel.data_world, "
    "parallel.data_rank), and data that is made by a function of `parallel`"
)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over all places, of classes in the last dimension."""
    return functional.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())


def parallelize(
    model: nn.Module,
    plan: Plan | str | Mapping[str, Any] | None = None,
    *,
    loss: Loss = cross_entropy,
    batch: int | None = None,
) -> Parallel:
    """Spread `model` over the processes of the run, by `plan` or by the run's own.

    `auto` lets the planner choose, best told of the samples in a whole step's `batch`.

    Every process must call it, with the same model. Raises InvalidPlan, before anything is exchanged, if the plan does
    not fit the number of processes, the model or the device. `loss` is a mean over the samples it is given.
    """
    process = init()
    split = split_of(model)
    sized = choose(plan if plan is not None else session().plan, model, split, process, batch)
    if batch is not None:
        sized.check_batch(batch)
    check(sized, model, split, process.device)
    return Parallel(model, sized, split, process, loss)


def check(plan: Plan, model: nn.Module, split: Split, device: torch.device) -> None:
    """InvalidPlan if the sized plan does not fit this model on this device."""
    plan.check_model(split.shape)
    check_stages(model, split, plan)
    check_tensor(model, split, plan)
    blocks = blocks_of(model, split)
    check_precision(plan, blocks, device)
    check_recompute(plan, blocks)
    check_sharding(plan, model, blocks)


class Parallel:
    """A model spread over processes. `parts` are what this one has of it: several when a pipeline is interleaved."""

    def __init__(self, model: nn.Module, plan: Plan, split: Split, process: Process, loss: Loss) -> None:
        self.plan = plan
        self.split = split
        self.device = process.device
        place = place_of(process.rank, plan)
        self.data_rank, self.data_world = place.data_rank, place.data_world
        self.loss_scale = LossScale() if plan.precision is Precision.FP16 else None
        self.health = Health(plan.on_nan, alert=session().alert, is_main=process.is_main)
        self._loss = loss
        self._rank = process.rank
        self._rows = Rows()
        self._steps = 0
        self._weight = 1.0
        agree_on_model(model, plan)
        model.to(self.device)
        self._unchanged = torch.zeros(1, device=self.device)
        self.mesh: DeviceMesh | None = build_mesh(plan, self.device.type)
        share_weights(model, plan)
        stages = stages_of(place.pipeline, plan)
        whole = plan.pipeline == 1
        self.parts = [model] if whole else [cut_stage(model, split, s, plan.total_stages) for s in stages]
        everywhere = [] if whole else names_in_all_stages(model, split, plan)
        self._copies = [self._apply(part) for part in self.parts]
        self._gradients = Gradients(self.parts, split, plan, self.mesh, self.device, in_all_stages=everywhere)
        self._pipeline: Pipeline | None = None
        if not whole:
            assert self.mesh is not None
            self._pipeline = Pipeline(self.parts, place.pipeline, plan, self.mesh, self.device, self._share_of_loss)
        seed = session().seed if session().seed is not None else agree_on_seed(plan)
        if seed is not None:
            # Weights were drawn from the same numbers everywhere; what is random from here on differs between copies.
            torch.manual_seed(seed + 1 + self.data_rank)

    def _apply(self, part: nn.Module) -> Copies:
        plan = self.plan
        blocks = blocks_of(part, self.split)
        if plan.tensor > 1:
            assert self.mesh is not None
            apply_tensor(part, self.split, self.mesh["tensor"], sequence=plan.sequence)
        if plan.precision is Precision.FP8:
            apply_fp8(blocks)
        elif plan.precision is Precision.BF16 and plan.compile and self.device.type == "cuda":
            apply_fastest(blocks)
        apply_recompute(blocks, plan.activation_checkpoint)
        if plan.compile:
            _compile(part, blocks, plan)
        return apply_copies(part, blocks, plan, self.mesh)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The whole model's output. With a pipeline no process has that: use `step` and `evaluate`."""
        if self._pipeline is not None:
            raise InvalidPlan(
                f"the model is cut into a pipeline of {self.plan.pipeline}, so no process can run all of it; "
                "use step(inputs, targets) and evaluate(inputs, targets), or pipeline=1"
            )
        with self._casts():
            return self._copies[0].forward(*args, **kwargs)

    def step(self, inputs: Any, targets: Any, *, share: float | None = None) -> Tensor:
        """Forward and backward of this process's part of a batch; gradients are means over the whole batch.

        The mean loss of the whole batch, on the device, without waiting for it. `share`: which part of the batch it is,
        where parts are not equal; `job.order` knows it. RanksDisagree if they are not equal and have no shares.
        """
        begin_step()
        rows = self._check_batch(inputs, targets, share)
        # Gradients are averaged over the copies, whatever each has seen of the batch.
        self._weight = 1.0 if share is None else share * self.data_world
        if self.loss_scale is not None:
            self.loss_scale.use()
        inputs, targets = moved(inputs, self.device), moved(targets, self.device)
        with self._gradients.of_step():
            losses = (self._microbatches if self._pipeline is None else self._pipeline.step)(inputs, targets)
        return self._mean_of_step(losses, rows)

    def _microbatches(self, inputs: Any, targets: Any) -> list[Tensor]:
        """Forward and backward of all of them; the losses."""
        copies, count = self._copies[0], self.plan.accumulate
        losses = []
        for number, (x, y) in enumerate(zip(cut(inputs, count), cut(targets, count), strict=True)):
            with copies.microbatch(last=number == count - 1):
                with self._casts():
                    output = copies.forward(x)
                loss = self._share_of_loss(output, y)
                del output
                loss.backward()  # type: ignore[no-untyped-call]
                losses.append(loss.detach())
        return losses

    def evaluate(self, inputs: Any, targets: Any) -> Tensor:
        """The mean loss of the whole batch without gradients. Parts may differ in their number of samples."""
        return self.evaluate_counted(inputs, targets)[0]

    @torch.no_grad()
    def evaluate_counted(self, inputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
        """The mean loss of the whole batch, and of how many samples, both on the device: a mean over several batches
        weighs them by these."""
        begin_evaluation()
        rows = rows_of(inputs, targets) or 1
        inputs, targets = moved(inputs, self.device), moved(targets, self.device)
        self._weight = 1.0
        with _evaluating(self.parts):
            if self._pipeline is not None:
                return self._mean_of_samples(self._pipeline.evaluate(inputs, targets), rows, scaled=True)
            with self._casts():
                output = self._copies[0].forward(inputs)
            with autocast(self.plan.precision, self.device):
                return self._mean_of_samples([self._loss(output, targets)], rows, scaled=False)

    def parameters(self) -> Iterator[nn.Parameter]:
        for _, parameter in self.named_parameters():
            yield parameter

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """This process's parameters, under the names that they have in the model."""
        seen: set[nn.Parameter] = set()  # a frozen one may be in several of its stages
        for part in self.parts:
            for name, parameter in part.named_parameters():
                if parameter not in seen:
                    seen.add(parameter)
                    yield name, parameter

    def _casts(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._copies[0].casts else autocast(self.plan.precision, self.device)

    def _share_of_loss(self, output: Any, targets: Any) -> Tensor:
        """What one microbatch adds to the mean, with the loss scale on it."""
        with autocast(self.plan.precision, self.device):
            loss = self._loss(output, targets)
        return loss * (self._weight * (self.loss_scale.value if self.loss_scale else 1.0) / self.plan.accumulate)

    def _mean_of_step(self, losses: list[Tensor], rows: int | None) -> Tensor:
        """Over the whole batch, on every process. With it goes by how many samples this one differs from before."""
        mean = self._sum(losses, scaled=True)
        if not self._exchanges_losses:
            return mean
        change = 0 if rows is None else self._rows.changed_by(rows)
        told = torch.cat(
            (
                (mean / (self.plan.copies * self.plan.tensor)).reshape(1),
                self._unchanged + change if change else self._unchanged,
            )
        )
        dist.all_reduce(told)
        # Where the numbers are in the host's memory anyway, everybody reads them.
        if rows is not None and (change or self.device.type == "cpu"):
            changes = round(float(told[1]))
            self._rows.check(rows, changes, rank=self._rank, world_size=self.plan.world_size, step=self._steps)
        return told[0]

    def _mean_of_samples(self, losses: list[Tensor], rows: int, *, scaled: bool) -> tuple[Tensor, Tensor]:
        """Over the whole batch, on every process, whatever the parts; and the samples of all parts."""
        mean = self._sum(losses, scaled=scaled)
        if not self._exchanges_losses:
            return mean, mean.new_full((), float(rows))
        told = torch.stack((mean * rows, mean.new_full((), float(rows if losses else 0))))
        dist.all_reduce(told)
        return told[0] / told[1], told[1] / self.plan.tensor

    @property
    def _exchanges_losses(self) -> bool:
        return self.plan.copies * self.plan.pipeline > 1

    def _sum(self, losses: list[Tensor], *, scaled: bool) -> Tensor:
        """Of this process's microbatches; those before a pipeline's last stage know of none."""
        if not losses:
            return torch.zeros((), device=self.device)
        total = torch.stack([loss.detach().float() for loss in losses]).sum()
        return total / self.loss_scale.value if scaled and self.loss_scale is not None else total

    def _check_batch(self, inputs: Any, targets: Any, share: float | None) -> int | None:
        """How many samples it has, if that is to be the same for all."""
        check_rows(inputs, targets, self.plan.accumulate)
        rows = rows_of(inputs, targets) if share is None else None
        if self._steps == 0:
            if self.plan.world_size > 1:
                self._compare_batches(inputs, targets, share)
            if rows is not None:
                self._rows.agree(rows)
        self._steps += 1
        return rows

    def _compare_batches(self, inputs: Any, targets: Any, share: float | None) -> None:
        everyone = tell_batch(inputs, targets, self.plan, self.data_rank, share)
        check_batches(everyone, self.plan)
        if is_read_twice(everyone) and self._rank == 0:
            session().alert("same_data", _SAME_DATA, step=self.health.done + 1)


@contextlib.contextmanager
def _evaluating(parts: Sequence[nn.Module]) -> Iterator[None]:
    """Each module comes back to its own mode: some of a model that trains may be frozen (`module.eval()`)."""
    modes = [(module, module.training) for part in parts for module in part.modules()]
    for part in parts:
        part.eval()
    try:
        yield
    finally:
        for module, was in modes:  # outer ones first
            if module.training != was:
                module.train(was)


def _compile(part: nn.Module, blocks: list[nn.Module], plan: Plan) -> None:
    """Block by block, so that one small program serves all of them; whole where nothing is exchanged on the way."""
    for module in [part] if plan.world_size == 1 or not blocks else blocks:
        module.forward = torch.compile(module.forward)
