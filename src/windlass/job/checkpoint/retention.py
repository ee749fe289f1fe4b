"""Which checkpoints stay: `decide_retention`, pure. Whatever the policy says, the newest always does, and where
it has metrics that are no numbers, the last ones before that had none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from windlass.core.errors import InvalidInput
from windlass.core.manifest import Manifest
from windlass.core.quantities import parse_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """A checkpoint stays if any of these wants it."""

    last: int = 3
    best: str | None = None  # a metric's name: the best ones by it stay too
    best_is: Literal["lowest", "highest"] = "lowest"
    best_count: int = 1
    every_steps: int | None = None  # those at multiples of it, forever
    newer_than_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("last", "best_count", "every_steps"):
            value = getattr(self, name)
            if not _is_count(value) and (name != "every_steps" or value is not None):
                raise InvalidInput(f"keep.{name} is {value!r}, but must be a whole number, at least 1")
        if self.best is not None and (not isinstance(self.best, str) or not self.best):
            raise InvalidInput(f"keep.best is {self.best!r}, but must be a metric's name")
        if self.newer_than_s is not None and not _is_time(self.newer_than_s):
            raise InvalidInput(
                f"keep.newer_than_s is {self.newer_than_s!r}, but must be a number of seconds, at least 0"
            )
        if self.best_is not in ("lowest", "highest"):
            raise InvalidInput(f"keep.best_is is {self.best_is!r}; options: lowest, highest")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


# Names of the spec's `checkpoint`, and ours.
_IN_SPECS = {
    "keep": "last",
    "keep_every": "every_steps",
    "keep_for": "newer_than_s",
    "best": "best",
    "best_is": "best_is",
}


def kept(wanted: Mapping[str, Any], usual: Keep | None = None) -> Keep:
    """As the spec says; what it does not say is as usual."""
    said = {name: wanted[key] for key, name in _IN_SPECS.items() if wanted.get(key) is not None}
    if "newer_than_s" in said:
        said["newer_than_s"] = parse_duration(said["newer_than_s"])
    return replace(usual or Keep(), **said)


def decide_retention(manifests: Iterable[Manifest], keep: Keep, *, now: float) -> list[Manifest]:
    """Those to delete, oldest first. Never the newest one, so never the only one."""
    ordered = sorted(manifests, key=lambda manifest: (manifest.step, manifest.created_at))
    kept = {id(manifest) for manifest in ordered[-keep.last :]}
    kept |= {id(manifest) for manifest in (*_best(ordered, keep), *_last_well(ordered))}
    for manifest in ordered:
        if keep.every_steps is not None and manifest.step % keep.every_steps == 0:
            kept.add(id(manifest))
        if keep.newer_than_s is not None and now - manifest.created_at < keep.newer_than_s:
            kept.add(id(manifest))
    return [manifest for manifest in ordered if id(manifest) not in kept]


def not_finite(metrics: Mapping[str, float]) -> list[str]:
    """The names of those that are no numbers to train on."""
    return [name for name, value in metrics.items() if not math.isfinite(value)]


def _last_well(ordered: list[Manifest]) -> list[Manifest]:
    """Where the newest is sick, it and those to come would else take the place of the last states that were any good.
    Two of these: metrics are of the step before, often, so the newer one may be sick already."""
    if not ordered or not not_finite(ordered[-1].metrics):
        return []
    return [manifest for manifest in ordered if not not_finite(manifest.metrics)][-2:]


def _best(ordered: list[Manifest], keep: Keep) -> list[Manifest]:
    if keep.best is None:
        return []
    sign = 1.0 if keep.best_is == "lowest" else -1.0
    valued = [
        (sign * manifest.metrics[keep.best], -manifest.step, number)
        for number, manifest in enumerate(ordered)
        if not math.isnan(manifest.metrics.get(keep.best, math.nan))
    ]
    return [ordered[number] for _, _, number in sorted(valued)[: keep.best_count]]
