"""Outcomes against the losses of one process: rows, whether they agree, and the table of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from windlass.job.parity.cases import LEARNS, Case
from windlass.job.parity.workers import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    world_size: int
    plan: str
    difference: float  # the largest of any step, relative
    bound: float
    last_loss: float
    learned: float  # how far the loss fell, relative to one process's
    footprint: dict[str, int] = field(default_factory=dict)
    wall_s: float = 0.0
    error: str | None = None

    @property
    def agrees(self) -> bool:
        return self.error is None and self.difference <= self.bound and self.learned >= LEARNS

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "agrees": self.agrees}


def judge(outcome: Outcome, reference: Sequence[float], world_size: int) -> Row:
    return Row(
        world_size=world_size,
        plan=outcome.case.name,
        difference=largest_difference(outcome.losses, reference),
        bound=outcome.case.bound,
        last_loss=outcome.losses[-1] if outcome.losses else math.nan,
        learned=_fall(outcome.losses) / _fall(reference) if outcome.losses else 0.0,
        footprint=outcome.footprint,
        wall_s=outcome.wall_s,
        error=outcome.error,
    )


def _fall(losses: Sequence[float]) -> float:
    return losses[0] - losses[-1]


def largest_difference(losses: Sequence[float], reference: Sequence[float]) -> float:
    """Relative to the reference; infinite where there is nothing to compare or no number."""
    if not losses or len(losses) != len(reference):
        return math.inf
    differences = [abs(mine - right) / abs(right) for mine, right in zip(losses, reference, strict=True)]
    return max(differences) if all(math.isfinite(d) for d in differences) else math.inf


def reference_key(case: Case) -> float | None:
    """What one process must do too, to be comparable: clipping changes the steps themselves."""
    return case.plan.clip


HEADER = (
    f"{'procs':>5} {'plan':<72} {'difference':>10} {'bound':>7} {'peak':>8} {'sent/step':>9} "
    f"{'params':>8} {'grads':>8} {'state':>8}  "
)


def render_row(row: Row) -> str:
    sizes = [_size(row.footprint.get(name)) for name in ("peak", "sent", "parameters", "gradients", "state")]
    numbers = " ".join(f"{size:>{width}}" for size, width in zip(sizes, (8, 9, 8, 8, 8), strict=True))
    verdict = "ok" if row.agrees else "FAILED" if row.error else "DIFFERS"
    return f"{row.world_size:>5} {row.plan:<72} {row.difference:>10.1e} {row.bound:>7.0e} {numbers}  {verdict}"


def render_summary(rows: Iterable[Row]) -> str:
    rows = list(rows)
    bad = [row for row in rows if not row.agrees]
    lines = [f"{len(rows) - len(bad)} of {len(rows)} plans agree with one process."]
    lines += [
        f"\n{row.world_size} processes, {row.plan}: "
        + (row.error or f"the loss differs by {row.difference:.1e} and falls {row.learned:.2f} as far")
        for row in bad
    ]
    return "\n".join(lines)


def _size(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:.2f}M" if count >= 1e5 else f"{count / 1e3:.1f}k"
