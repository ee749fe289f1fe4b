"""What processes say of checkpoints: saved, removed, found corrupt, listed. Pure; `windlass.checkpoints` keeps it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windlass.core.manifest import MOST_PARTS, PartFile
from windlass.core.storable import storable_text

_LONGEST_PLACE = 4_000
_LONGEST_TEXT = 2_000
_LONGEST_WORD = 32
_LONGEST_NAME = 250
_MOST_METRICS = 200
_SHA256_LENGTH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    at: float
    step: int
    folder: str
    tier: str
    created_at: float  # with the folder it tells one checkpoint from all others
    size_bytes: int
    file_count: int
    world_size: int
    plan: str
    format: str
    reason: str
    metrics: Mapping[str, float]
    epoch: int | None = None
    parts: tuple[PartFile, ...] | None = None  # None: too many to be told, or told by an older version


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    at: float
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCorrupt:
    at: float
    folder: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """All that there is in a folder of checkpoints: others were removed by somebody who told nobody."""

    at: float
    root: str
    folders: frozenset[str]


SaveNote = Saved | Removed | FoundCorrupt | Listed


def read_note(said: Mapping[str, Any], *, at: float, step: int | None) -> SaveNote:
    """Raises ValueError, KeyError, TypeError or AttributeError for what is no such note."""
    if "removed" in said:
        return Removed(at=at, folder=_place(said["removed"]))
    if "corrupt" in said:
        return FoundCorrupt(at=at, folder=_place(said["corrupt"]), why=_text(said.get("why", ""), _LONGEST_TEXT))
    if "root" in said:
        return Listed(at=at, root=_place(said["root"]), folders=frozenset(_place(one) for one in list(said["there"])))
    if step is None:
        raise ValueError("a checkpoint is of a step")
    metrics = dict(_metrics(said.get("metrics") or {}))
    return Saved(
        at=at,
        step=step,
        folder=_place(said["folder"]),
        tier=_text(said["tier"], _LONGEST_WORD),
        created_at=_time(said["created_at"]),
        size_bytes=_count(said["size_bytes"], 2**63),
        file_count=_count(said["files"], 2**31),
        world_size=_count(said["world_size"], 2**31),
        plan=_text(said.get("plan", ""), _LONGEST_TEXT),
        format=_text(said.get("format", ""), _LONGEST_WORD),
        reason=_text(said["reason"], _LONGEST_WORD),
        metrics=metrics,
        epoch=_epoch(metrics),
        parts=_parts(said.get("parts")),
    )


def _place(value: Any) -> str:
    """A path that is cut off would be another path."""
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_PLACE or storable_text(value) != value:
        raise ValueError(f"{value!r:.80} is no place of a checkpoint")
    return value


def _text(value: Any, longest: int) -> str:
    return storable_text(str(value))[:longest]


def _count(value: Any, end: int) -> int:
    number = int(value)
    if not 0 <= number < end:
        raise ValueError(f"{number} is out of range")
    return number


def _epoch(metrics: Mapping[str, float]) -> int | None:
    """Programs log it as any other value, some with how much of it is done."""
    epoch = metrics.get("epoch", -1.0)
    return int(epoch) if 0 <= epoch < 2**53 else None


def _parts(told: Any) -> tuple[PartFile, ...] | None:
    if told is None or len(told) > MOST_PARTS:
        return None
    return tuple(
        PartFile(name=_place(name), size_bytes=_count(size, 2**63), sha256=_text(sha256, _SHA256_LENGTH))
        for name, size, sha256 in told
    )


def _time(value: Any) -> float:
    at = float(value)
    if not 0 <= at < 1e11:
        raise ValueError(f"{at} is not a time: times are seconds since the epoch")
    return at


def _metrics(values: Mapping[str, Any]) -> list[tuple[str, float]]:
    pairs = [(_text(name, _LONGEST_NAME), float(value)) for name, value in list(values.items())[:_MOST_METRICS]]
    return [(name, value) for name, value in pairs if math.isfinite(value)]
