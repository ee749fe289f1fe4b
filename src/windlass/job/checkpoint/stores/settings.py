"""What the uploader process is told when it is started, as one JSON text."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class UploaderSettings:
    folder: str
    address: str  # of the run's own place in the store
    endpoint: str | None = None
    every: int | str | None = None  # None: as often as the store keeps up
    keep: dict[str, Any] = field(default_factory=dict)
    bytes_per_s: float | None = None
    retries: int = 4  # of one request, by the client, before it counts as trouble
    # Where nodes share no folder: which of them this is, and how many there are.
    node: int = 0
    nodes: int = 1

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def read_settings(text: str) -> UploaderSettings:
    return UploaderSettings(**json.loads(text))
