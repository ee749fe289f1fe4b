"""What a checkpoint is: `Manifest`, one small JSON file that is written last. Without it a folder is no checkpoint.

Pure, and of the standard library alone: jobs write it, the server's catalogue and the command line read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from windlass.core.errors import InvalidInput

MANIFEST = "manifest.json"
VERSION = 1
# A note of a save has them all if they are not more; of others who wants them looks into the manifest.
MOST_PARTS = 1_000


class InvalidManifest(InvalidInput):
    """A manifest that cannot be read, or that another version wrote."""

    code = "invalid_manifest"


class SaveReason(StrEnum):
    INTERVAL = "interval"
    WARNED = "warned"  # the process was told to end: saved just in time
    FINAL = "final"
    ASKED = "asked"  # by the script


class Tier(StrEnum):
    """Kinds of places that a checkpoint is at; copies in nodes' memory are no checkpoints."""

    FOLDER = "folder"
    STORE = "store"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile:
    """One file of a checkpoint, by its path inside the checkpoint's folder."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    run_id: str | None  # None: saved outside Windlass
    attempt: int
    step: int
    created_at: float
    reason: SaveReason
    world_size: int
    plan: str  # as text; another plan can load it
    files: tuple[PartFile, ...]
    format: str = "dcp"  # `torch.distributed.checkpoint` reads the folder
    metrics: Mapping[str, float] = field(default_factory=dict)  # last values, for "best by"
    version: int = VERSION

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def folder_name(step: int) -> str:
    """Of a checkpoint, inside the folder of a run's checkpoints. Sorts by step."""
    return f"step-{step:010d}"


def render_manifest(manifest: Manifest) -> str:
    return json.dumps(asdict(manifest), indent=1, sort_keys=True) + "\n"


def parse_manifest(text: str | bytes) -> Manifest:
    try:
        data: dict[str, Any] = json.loads(text)
        if data["version"] != VERSION:
            raise InvalidManifest(
                f"the checkpoint's manifest has version {data['version']!r}; this Windlass reads version {VERSION}"
            )
        files = tuple(PartFile(**file) for file in data.pop("files"))
        reason = SaveReason(data.pop("reason"))
        return Manifest(**data, files=files, reason=reason)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidManifest(f"the checkpoint's manifest cannot be read: {error!r}") from None
