"""What is asked of a plan: `Wanted`. With `auto` the planner chooses what is not named, else that has its defaults."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from windlass.core.plan import InvalidPlan, Plan, plain_values, plan_keys, plan_of, plan_text, sizes_that_fit

AUTO = "auto"
PLAN_TAG = "windlass.plan"  # of a run: the plan that its job says it trains by
_SIDES = ("data", "shard", "tensor", "pipeline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    named: Mapping[str, Any] = field(default_factory=dict)  # keys of a plan, also such as are at their defaults
    auto: bool = False

    def check_size(self, world_size: int) -> None:
        """InvalidPlan if no plan that has what is named is one for so many processes."""
        if not self.auto:
            plan_of(self.named).sized(world_size)
            return
        sides = {name: self.named[name] for name in _SIDES if self.named.get(name) is not None}
        product = math.prod(sides.values())
        if world_size % product:
            raise InvalidPlan(
                f"plan {self} needs a multiple of {product} processes "
                f"({' × '.join(f'{name} {size}' for name, size in sides.items())}), and the run has {world_size}",
                hint=sizes_that_fit(world_size, product),
            )

    @property
    def cut(self) -> Plan:
        """How a model is cut in any case, whatever the planner chooses."""
        sides = {name: self.named[name] for name in ("tensor", "pipeline") if name in self.named}
        sequence = self.named.get("sequence", False) and sides.get("tensor", 1) > 1
        return Plan(**sides, sequence=sequence)

    def as_spec(self) -> str | dict[str, Any]:
        """As a spec keeps it; `parse_wanted` reads it back."""
        if not self.auto:
            return plan_of(self.named).as_dict()
        return {AUTO: True, **plain_values(self.named)} if self.named else AUTO

    def __str__(self) -> str:
        if not self.auto:
            return str(plan_of(self.named))
        return f"{AUTO},{plan_text(self.named)}" if self.named else AUTO


def parse_wanted(value: Wanted | Plan | str | Mapping[str, Any] | None) -> Wanted:
    """As `parse_plan`, and `auto`, alone or beside keys: `auto,clip=1`, `{auto: true, clip: 1}`."""
    if isinstance(value, Wanted):
        return value
    if isinstance(value, Plan):
        return Wanted(named=plan_keys(value.as_dict()))
    named = plan_keys(value, others=(AUTO,))
    auto = named.pop(AUTO, False)
    if not auto:
        plan_of(named)  # which says what is wrong with it
    return Wanted(named=named, auto=auto)


def spec_text(plan: str | Mapping[str, Any]) -> str:
    """What a spec keeps, in one line; it is not judged."""
    if isinstance(plan, str):
        return plan
    named = {name: value for name, value in plan.items() if name != AUTO}
    return ",".join(part for part in (AUTO if plan.get(AUTO) else "", plan_text(named)) if part) or "data"


def as_environment(plan: str | Mapping[str, Any]) -> str:
    """What a spec keeps, as programs find it in `WINDLASS_PLAN`: `auto`, or JSON."""
    return plan if isinstance(plan, str) else json.dumps(plan)
