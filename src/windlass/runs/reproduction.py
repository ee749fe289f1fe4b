"""Running something again exactly: what of a run is pinned by its record, what is not, and what its copy must ask for
so that it gets what the first one got. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from windlass.core.resources import Placement
from windlass.runs.records import RunRecord
from windlass.wire.runs import Pin

_TOLD_PACKAGES = ("torch", "numpy", "jax", "tensorflow", "xgboost", "scikit-learn", "transformers", "lightning")


class Known(NamedTuple):
    """What the record has of a run besides its row."""

    placement: Placement | None  # of its last attempt that began
    environment: Mapping[str, Any]
    datasets: Sequence[tuple[str, str]]  # name and digest of what it said it read


def decide_pins(run: RunRecord, known: Known) -> list[Pin]:
    return [
        _code(run),
        Pin(what="command", pinned=True, how=" ".join(run.argv)),
        Pin(what="seed", pinned=True, how=f"{run.seed}, as WINDLASS_SEED; the script has to use it"),
        _packages(run, known.environment),
        _hardware(run, known.placement),
        _data(known.datasets),
    ]


def decide_changes(run: RunRecord, placement: Placement | None) -> dict[str, Any]:
    """Keys of the spec that leave a choice, set to what the run had."""
    changes: dict[str, Any] = {}
    if placement is None:
        return changes
    spec = run.spec
    gpus = {len(share.gpu_indices) for share in placement.shares}
    if spec.elastic is not None:
        changes |= {"elastic": None, "resources.nodes": len(placement.shares)}
    if spec.resources.min_gpus is not None and len(gpus) == 1:
        changes |= {"resources.gpus": gpus.pop(), "resources.min_gpus": None}
    return changes


def _code(run: RunRecord) -> Pin:
    git: Mapping[str, Any] = run.origin.get("git") or {}
    commit = f"; commit {git['commit'][:12]}{' with changes' if git.get('dirty') else ''}" if git.get("commit") else ""
    if run.code_digest is not None:
        return Pin(what="code", pinned=True, how=f"snapshot {run.code_digest[:12]}{commit}")
    if run.spec.recipe is not None:
        return Pin(what="code", pinned=False, how=f"recipe {run.spec.recipe} of the Windlass that is installed then")
    return Pin(
        what="code",
        pinned=False,
        how=f"no snapshot was taken: {run.spec.workdir or 'its folder'} as it is then{commit}",
    )


def _packages(run: RunRecord, environment: Mapping[str, Any]) -> Pin:
    image = run.spec.image
    if image is not None:
        if "@sha256:" in image:
            return Pin(what="packages", pinned=True, how=f"image {image}")
        return Pin(what="packages", pinned=False, how=f"image {image} is a tag, which can move; write NAME@sha256:...")
    packages: Mapping[str, str] = environment.get("packages") or {}
    told = [f"{name} {packages[name]}" for name in _TOLD_PACKAGES if name in packages]
    had = (
        f"; it had Python {environment['python_version']}, {', '.join(told)}"
        if environment.get("python_version")
        else ""
    )
    return Pin(what="packages", pinned=False, how=f"those that are installed then{had}")


def _hardware(run: RunRecord, placement: Placement | None) -> Pin:
    wanted = run.resources
    if not wanted.gpus:
        return Pin(what="hardware", pinned=False, how="any CPUs; sums in another order can differ in the last digits")
    where = f" (it ran on {', '.join(share.node for share in placement.shares[:3])})" if placement else ""
    if wanted.gpu_type is None or len(wanted.gpu_types) > 1:
        return Pin(what="hardware", pinned=False, how=f"the spec leaves the type of GPU open{where}")
    return Pin(what="hardware", pinned=True, how=f"{wanted.nodes} x {wanted.gpus:g} {wanted.gpu_type}{where}")


def _data(datasets: Sequence[tuple[str, str]]) -> Pin:
    if not datasets:
        return Pin(what="data", pinned=False, how="what it read is not recorded")
    told = ", ".join(f"{name} {digest}" for name, digest in datasets)
    return Pin(what="data", pinned=False, how=f"it said it read {told}; whether that is there still is not checked")
