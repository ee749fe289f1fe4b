"""What a run wants of its stores: `choose_stores`, from the spec's `checkpoint`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from windlass.blobs.bucket import check_address
from windlass.core.quantities import parse_size
from windlass.job.checkpoint.retention import Keep, kept
from windlass.job.checkpoint.stores.settings import UploaderSettings

_ONE = "store"
_OF_ONE = f"{_ONE}_"  # how the keys begin that say more of it


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreChoice:
    """What the run wants of a store."""

    address: str
    keep: Keep
    endpoint: str | None = None
    every: int | str | None = None
    bytes_per_s: float | None = None

    def settings(self, folder: Path, *, node: int = 0, nodes: int = 1) -> UploaderSettings:
        """For the uploader of that folder."""
        return UploaderSettings(
            folder=str(folder),
            address=self.address,
            endpoint=self.endpoint,
            every=self.every,
            keep=asdict(self.keep),
            bytes_per_s=self.bytes_per_s,
            node=node,
            nodes=nodes,
        )


def choose_stores(
    wanted: Mapping[str, Any], run_id: str | None, *, keep: Keep, inside: str | None = None
) -> list[StoreChoice]:
    """From the spec's `checkpoint`. Each run has a place of its own in each store; `inside`: a folder of that. `keep`:
    of the run's folder, which holds for a store where nothing else is said of it."""
    below = "".join(f"/{name}" for name in (run_id, inside) if name)
    return [_choice(store, below, keep) for store in _stores(wanted)]


def _stores(wanted: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if not wanted.get(_ONE):
        return list(wanted.get("stores") or ())
    more = {key.removeprefix(_OF_ONE): value for key, value in wanted.items() if key.startswith(_OF_ONE)}
    return [{"at": wanted[_ONE], **more}]


def _choice(store: Mapping[str, Any], below: str, keep: Keep) -> StoreChoice:
    rate = store.get("rate")
    return StoreChoice(
        address=check_address(store["at"]) + below,
        keep=kept(store, keep),
        endpoint=store.get("endpoint"),
        every=store.get("every"),
        bytes_per_s=None if rate is None else float(parse_size(rate)),
    )
