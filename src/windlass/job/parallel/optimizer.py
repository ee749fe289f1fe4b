"""The optimizer of a parallel model: one norm of the gradient decides on clipping, loss scale and skipping."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from windlass.job.accounting.anomaly import Norms
from windlass.job.adamw import NarrowAdamW
from windlass.job.parallel.copies import gives_sparse_gradients
from windlass.job.parallel.groups import Params, apply_split, groups_of
from windlass.job.parallel.norm import gradient_norm, local_gradients, settle_gradients
from windlass.job.parallel.parallelize import Parallel
from windlass.job.parallel.precision import LossScale


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    grad_norm: Tensor  # of the whole gradient before clipping, on the device
    skipped: bool  # the parameters stayed as they were
    loss_scale: float | None  # that this step's loss had; None without fp16, or if `parallel.step` did not make it


def optimizer(
    parallel: Parallel,
    kind: type[torch.optim.Optimizer] = torch.optim.AdamW,
    *,
    params: Params | None = None,
    **options: Any,
) -> Optimizer:
    """`kind` over the model's parameters, or over `params`: parameters, names with parameters as of
    `parallel.named_parameters()`, or groups of them with options of their own.

    Fused where `kind` can be, unless `options` say otherwise.
    """
    if not isinstance(parallel, Parallel):
        raise TypeError(
            f"job.optimizer takes what job.parallelize returned, not {type(parallel).__name__}: "
            "job.optimizer(job.parallelize(model), ...)"
        )
    groups = groups_of(parallel.parameters() if params is None else params)
    is_sparse = any(gives_sparse_gradients(part) for part in parallel.parts)  # no fused kernel takes such gradients
    if "fused" not in options and "foreach" not in options and not is_sparse and _fuses(kind, groups):
        options["fused"] = True
    return Optimizer(parallel, kind(groups, **options))


class Optimizer:
    """`inner` is the real one, for schedules and whatever else asks for a torch optimizer."""

    def __init__(self, parallel: Parallel, inner: torch.optim.Optimizer) -> None:
        self.parallel = parallel
        self.inner = inner
        self._norms = Norms()
        apply_split(inner)
        self._parameters: list[nn.Parameter] = [p for group in inner.param_groups for p in group["params"]]
        # Uses of the loss scale that are no longer in the gradients.
        self._undone = 0 if any(p.grad is not None for p in self._parameters) else self._uses

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.inner.param_groups

    @torch.no_grad()
    def step(self) -> StepReport:
        """Apply the gradients that `parallel.step` left, or the backward pass of a loss of one's own.

        Without fp16 and with `on_nan: go_on` the host waits for nothing; else it reads the norm.
        """
        plan, scale = self.parallel.plan, self._scale
        settle_gradients(self._parameters)
        norm = gradient_norm(self._parameters, plan, self.parallel.device)
        used = None if scale is None else scale.used
        factor = None if used is None else 1.0 / used
        if factor is not None:
            norm = norm * factor
        applied = self._should_apply(norm, scale)
        if not self.parallel.health.is_metered:
            self.parallel.health.done += 1
        if not applied:
            return StepReport(grad_norm=norm, skipped=True, loss_scale=used)
        self._shrink(norm, factor)
        self._undone = self._uses
        self.inner.step()
        return StepReport(grad_norm=norm, skipped=False, loss_scale=used)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none=set_to_none)
        self._undone = self._uses

    def state_dict(self) -> dict[str, Any]:
        scale = self.parallel.loss_scale
        extra = {} if scale is None else {"loss_scale": (scale.value, scale.good_steps)}
        return {"optimizer": self.inner.state_dict(), **extra}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.inner.load_state_dict(state["optimizer"])
        scale = self.parallel.loss_scale
        if scale is not None and "loss_scale" in state:
            scale.value, scale.good_steps = state["loss_scale"]

    @property
    def _uses(self) -> int:
        return 0 if self.parallel.loss_scale is None else self.parallel.loss_scale.uses

    @property
    def _scale(self) -> LossScale | None:
        """The loss scale, if it is in the gradients: a loop's own backward pass leaves them as they are."""
        return self.parallel.loss_scale if self._uses > self._undone else None

    def _should_apply(self, norm: Tensor, scale: LossScale | None) -> bool:
        health = self.parallel.health
        if scale is None and not health.reads_norms:
            return True
        found = float(norm)
        if scale is None:
            return health.applies(found, self._norms)
        # With a scale that can still fall, an overflow is how its limit is found, and no news.
        overflow, searching = not math.isfinite(found), scale.value > 1.0
        scale.update(overflow=overflow)
        return health.applies(found, self._norms, scaled=searching) and not (overflow and searching)

    def _shrink(self, norm: Tensor, factor: float | None) -> None:
        """Undo the loss scale and clip, in one pass over the gradients."""
        clip = self.parallel.plan.clip
        if clip is None and factor is None:
            return
        gradients = local_gradients(self._parameters)
        by: Tensor | float = 1.0 if factor is None else factor
        if clip is not None:
            by = (clip / (norm + 1e-6)).clamp(max=1.0) * by
        if isinstance(self.inner, NarrowAdamW):
            self.inner.factor = torch.as_tensor(by, device=norm.device)  # in the pass that it makes anyway
            return
        if isinstance(by, Tensor) and gradients and gradients[0].device != by.device:
            by = by.to(gradients[0].device)  # offloaded
        torch._foreach_mul_(gradients, by)


def _fuses(kind: type[torch.optim.Optimizer], groups: list[dict[str, Any]]) -> bool:
    if "fused" not in inspect.signature(kind).parameters:
        return False
    parameters = [p for group in groups for p in group["params"]]
    if any(isinstance(p, DTensor) for p in parameters) and kind not in (torch.optim.Adam, torch.optim.AdamW):
        return False  # DTensor knows Adam's fused kernels only
    return all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)
