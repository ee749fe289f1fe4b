"""The route that tells what came from what."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from windlass.api.context import Context
from windlass.wire.lineage import Lineage

router = APIRouter(prefix="/api", tags=["runs"])


@router.get("/lineage")
def lineage(
    of: Annotated[
        str,
        Query(
            min_length=1,
            max_length=1_000,
            pattern=r"^[^\x00]*$",
            description="a run, models:/NAME/VERSION, models:/NAME@ALIAS, m-..., dataset:NAME@DIGEST, checkpoint:ID",
        ),
    ],
    services: Context,
) -> Lineage:
    """Datasets, runs, checkpoints and models that something came from, and those that came from it."""
    return services.lineage.of(of)
