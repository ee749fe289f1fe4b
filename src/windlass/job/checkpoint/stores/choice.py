"""What a run wants of its store: `choose_store`, from the spec's `checkpoint`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windlass.blobs.bucket import check_address
from windlass.core.quantities import parse_size


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreChoice:
    """What the run wants of its store."""

    address: str
    endpoint: str | None = None
    every: int | str | None = None
    keep: int | None = None
    bytes_per_s: float | None = None


def choose_store(wanted: Mapping[str, Any], run_id: str | None) -> StoreChoice | None:
    """From the spec's `checkpoint`; each run has a place of its own in the store."""
    address = wanted.get("store")
    if not address:
        return None
    rate = wanted.get("store_rate")
    return StoreChoice(
        address=check_address(address) + (f"/{run_id}" if run_id else ""),
        endpoint=wanted.get("store_endpoint"),
        every=wanted.get("store_every"),
        keep=wanted.get("store_keep"),
        bytes_per_s=None if rate is None else float(parse_size(rate)),
    )
