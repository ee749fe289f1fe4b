"""What a checkpoint is: `Manifest`, one small JSON file that is written last. Without it a folder is no checkpoint.

Pure, and of the standard library alone: jobs write it, the server's catalogue and the command line read it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from windlass.core.errors import InvalidInput

MANIFEST = "manifest.json"
VERSION = 1
_SUM = "sha256"  # of the rest of the manifest; this and `version` are where they are in every later version
NEWER_HINT = "upgrade Windlass where the run trains, or move that checkpoint away to go on from one before it"
_STEP = re.compile(r"step-(\d{10,})")
# A note of a save has them all if they are not more; of others who wants them looks into the manifest.
MOST_PARTS = 1_000


class InvalidManifest(InvalidInput):
    """A manifest that cannot be read, or is not what was written."""

    code = "invalid_manifest"


class NewerManifest(InvalidManifest):
    """A newer Windlass wrote it: nothing is wrong with the checkpoint, and nobody who cannot read it may remove it."""

    code = "newer_manifest"


class SaveReason(StrEnum):
    INTERVAL = "interval"
    WARNED = "warned"  # the process was told to end: saved just in time
    FINAL = "final"
    ASKED = "asked"  # by the script
    RESCUED = "rescued"  # from the node's memory, when the attempt had ended badly


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


def step_of_folder(name: str) -> int | None:
    """None: not the name of a checkpoint's folder."""
    found = _STEP.fullmatch(name)
    return int(found[1]) if found else None


def digest_of(manifest: Manifest) -> str:
    return _digest(asdict(manifest))


def render_manifest(manifest: Manifest) -> str:
    return _text({**asdict(manifest), _SUM: digest_of(manifest)})


def parse_manifest(text: str | bytes, *, name: str = "") -> Manifest:
    """`name`: of its folder, which says the step too, whatever stands before and after it."""
    try:
        data: dict[str, Any] = json.loads(text)
        said = data.pop(_SUM, None)  # what was saved before there was one has none
        if said is not None and said != _digest(data):
            raise InvalidManifest("the checkpoint's manifest is not what was written: its own sha256 is another")
        _check_version(data["version"])
        files = tuple(PartFile(**file) for file in data.pop("files"))
        reason = SaveReason(data.pop("reason"))
        manifest = Manifest(**data, files=files, reason=reason)
        found = _STEP.search(name)
        if found is not None and found[0] != folder_name(manifest.step):
            raise InvalidManifest(f"the manifest in {name} is of step {manifest.step}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidManifest(f"the checkpoint's manifest cannot be read: {error!r}") from None
    return manifest


def _check_version(version: Any) -> None:
    if isinstance(version, int) and version > VERSION:
        raise NewerManifest(
            f"the checkpoint was saved by a newer version of Windlass: its manifest has version {version}, and "
            f"this one reads up to {VERSION}"
        )
    if version != VERSION:
        raise InvalidManifest(f"the checkpoint's manifest has version {version!r}; options: {VERSION}")


def _digest(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(_text(data).encode()).hexdigest()


def _text(data: Mapping[str, Any]) -> str:
    """The same for the same data, whatever order and space it was read with."""
    return json.dumps(data, indent=1, sort_keys=True) + "\n"
