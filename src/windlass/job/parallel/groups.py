"""Groups of an optimizer: those that the user made, and for the time of a step those that one call can take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

Params = Iterable[nn.Parameter] | Iterable[tuple[str, nn.Parameter]] | Iterable[Mapping[str, Any]]


def groups_of(params: Params) -> list[dict[str, Any]]:
    """As torch's optimizers take them: parameters, names with parameters, or groups of either."""
    chosen: list[Any] = list(params)
    groups = [dict(group) if isinstance(group, Mapping) else {"params": [group]} for group in chosen]
    if groups and not any(isinstance(group, Mapping) for group in chosen):
        groups = [{"params": chosen}]
    return [{**group, "params": _unnamed(group["params"])} for group in groups]


def apply_split(inner: torch.optim.Optimizer) -> None:
    """Let each step of `inner` see its groups in parts of one mesh each, or of none: one fused or foreach call takes no
    others. Before and after it, groups are the user's, for schedules and checkpoints."""
    if all(len(_by_mesh(group)) <= 1 for group in inner.param_groups):
        return
    whole: list[dict[str, Any]] = []

    def split(*_: Any) -> None:
        if not whole:  # if they are still split, the last step failed
            whole.extend(inner.param_groups)
            inner.param_groups[:] = [part for group in whole for part in _by_mesh(group)]

    def join(*_: Any) -> None:
        if not whole:  # a step within a step, as of an optimizer that calls the one it is made of
            return
        parts = iter(list(inner.param_groups))
        for group in whole:
            of_group = [next(parts) for _ in _by_mesh(group)]
            # What a step changed in its group, it changed in all parts alike.
            group.update({name: value for name, value in of_group[0].items() if name != "params"})
        inner.param_groups[:] = whole
        whole.clear()

    inner.register_step_pre_hook(split)
    inner.register_step_post_hook(join)


def _unnamed(params: Any) -> list[nn.Parameter]:
    given: list[Any] = [params] if isinstance(params, Tensor) else list(params)
    return [one[1] if isinstance(one, tuple) else one for one in given]


def _by_mesh(group: Mapping[str, Any]) -> list[dict[str, Any]]:
    kinds: dict[Any, list[Tensor]] = defaultdict(list)
    for parameter in group["params"]:
        kinds[parameter.device_mesh if isinstance(parameter, DTensor) else None].append(parameter)
    return [{**group, "params": params} for params in kinds.values()] or [dict(group)]
