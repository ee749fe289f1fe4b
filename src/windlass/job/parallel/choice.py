"""From what a script or a run asks for to the plan that is used: sized for the processes there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from windlass.core.plan import AUTO, InvalidPlan, Plan, parse_plan
from windlass.job.parallel.split import Split
from windlass.job.process import Process


def choose(wanted: Plan | str | Mapping[str, Any], model: nn.Module, split: Split, process: Process) -> Plan:
    if isinstance(wanted, str) and wanted.strip() == AUTO:
        return _automatic(model, split, process)
    return parse_plan(wanted).sized(process.world_size)


def _automatic(model: nn.Module, split: Split, process: Process) -> Plan:
    del model, split, process
    raise InvalidPlan("plan: auto is not known here yet")
