"""AdamW for weights that the model holds in bf16 and the optimizer in fp32: `narrow_weights`, then `NarrowAdamW`.

Under autocast every weight is read in fp32 and written in bf16 once a step, its gradient the other way round, and
clipping passes over all gradients again. Here one pass reads a gradient in bf16, clips it, and writes both weights.
For one process on one GPU: copies and shards exchange what they hold in types of their own.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

_STATE = ("wide", "mean", "square")


def narrow_weights(modules: Iterable[nn.Module], dtype: torch.dtype = torch.bfloat16) -> None:
    """Give the linear layers among and in `modules` weights of `dtype`; the exact ones wait for the optimizer."""
    for module in modules:
        for layer in module.modules():
            if isinstance(layer, nn.Linear) and layer.weight.dtype != dtype:
                exact = layer.weight.data
                layer.weight.data = exact.to(dtype)
                layer.weight.wide = exact  # type: ignore[attr-defined]


def exact_weights(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The model's state with the fp32 weights of the optimizer in it, to be saved."""
    exact = {
        name: optimizer.state.get(parameter, {}).get("wide", getattr(parameter, "wide", parameter.data))
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }
    return {name: exact.get(name, value) for name, value in model.state_dict().items()}


class NarrowAdamW(torch.optim.Optimizer):
    """Takes narrow and plain parameters alike. `factor`, if set, multiplies the gradients of the next step."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        self.factor: Tensor | None = None
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        if closure is not None:
            raise ValueError("NarrowAdamW takes no closure: it computes no losses")
        factor, self.factor = self.factor, None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group, factor)

    def _update(self, parameter: nn.Parameter, group: dict[str, Any], factor: Tensor | None) -> None:
        state = self.state[parameter]
        if not state:
            exact = parameter.__dict__.pop("wide", None)
            state["step"] = 0
            state["mean"] = torch.zeros_like(parameter, dtype=torch.float32)
            state["square"] = torch.zeros_like(parameter, dtype=torch.float32)
            if parameter.dtype != torch.float32:
                state["wide"] = parameter.detach().float() if exact is None else exact
        state["step"] += 1
        lr, (beta1, beta2) = float(group["lr"]), group["betas"]
        if factor is None:
            factor = torch.ones((), device=parameter.device)
        _adamw_(parameter.device.type)(
            wide=state.get("wide", parameter.data),
            narrow=parameter.data if "wide" in state else None,
            gradient=parameter.grad.contiguous(),  # type: ignore[union-attr]
            mean=state["mean"],
            square=state["square"],
            factor=factor,
            numbers={
                "lr": lr,
                "beta1": beta1,
                "beta2": beta2,
                "eps": group["eps"],
                "shrink": 1 - lr * group["weight_decay"],
                "unbias1": 1 / (1 - beta1 ** state["step"]),
                "unbias2": 1 / (1 - beta2 ** state["step"]),
            },
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(dict(state_dict))
        # Torch gives what it loads the parameter's type, which would round the exact weights.
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, saved in state_dict["state"].items():
            parameter = parameters[number]
            parameter.__dict__.pop("wide", None)
            for name in _STATE:
                if name in saved:
                    self.state[parameter][name] = saved[name].to(parameter.device, torch.float32, copy=True)


def _plain_adamw_(
    *,
    wide: Tensor,
    narrow: Tensor | None,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    factor: Tensor,
    numbers: dict[str, float],
) -> None:
    n = numbers
    g = gradient.float() * factor
    mean.lerp_(g, 1 - n["beta1"])
    square.mul_(n["beta2"]).addcmul_(g, g, value=1 - n["beta2"])
    wide.mul_(n["shrink"]).sub_(n["lr"] * n["unbias1"] * mean / ((square * n["unbias2"]).sqrt_() + n["eps"]))
    if narrow is not None:
        narrow.copy_(wide)


@functools.cache
def _adamw_(device_type: str) -> Callable[..., None]:
    if device_type == "cuda" and importlib.util.find_spec("triton") is not None:
        fused: Callable[..., None] = importlib.import_module("windlass.job.kernels").adamw_
        return fused
    return _plain_adamw_
