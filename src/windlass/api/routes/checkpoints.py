"""Routes of the catalogue of checkpoints: list, look at, verify, remove."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from windlass.api.context import Context
from windlass.api.routes.runs import Ref
from windlass.wire import checkpoints as wire

router = APIRouter(prefix="/api/runs/{ref}/checkpoints", tags=["checkpoints"])

Which = Annotated[
    str,
    Path(min_length=1, max_length=40, pattern=r"^[a-z0-9-]*$", description="a step, an id, `newest` or `best`"),
]


@router.get("")
def list_checkpoints(
    ref: Ref,
    services: Context,
    everything: Annotated[bool, Query(alias="all", description="also those that are corrupt or deleted")] = False,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
) -> wire.CheckpointList:
    """The run's checkpoints, newest first."""
    return services.checkpoints.list(ref, everything=everything, limit=limit)


@router.get("/{which}")
def show(ref: Ref, which: Which, services: Context) -> wire.CheckpointDetail:
    return services.checkpoints.show(ref, which)


@router.post("/{which}/verify")
def verify(ref: Ref, which: Which, services: Context) -> wire.Verification:
    """Read all of its files and compare sizes and hashes; the answer may take minutes."""
    return services.checkpoints.verify(ref, which)


@router.post("/{which}/remove")
def remove(ref: Ref, which: Which, services: Context, request: wire.RemoveRequest | None = None) -> wire.CheckpointView:
    """Delete its files: at the place that an id names, in one tier, or everywhere. What a run that is not over would go
    on from stays."""
    wanted = request or wire.RemoveRequest()
    return services.checkpoints.remove(ref, which, forget=wanted.forget, tier=wanted.tier)
