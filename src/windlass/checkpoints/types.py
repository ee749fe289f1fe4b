"""A checkpoint as the catalogue knows it: its states, the one table of allowed changes, and its id."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from windlass.core.errors import InvalidTransition
from windlass.core.ids import ALPHABET

_ID_LENGTH = 10


class CheckpointState(StrEnum):
    AVAILABLE = "available"  # committed, and nobody has said otherwise
    CORRUPT = "corrupt"  # looked at, and not what its manifest says
    DELETED = "deleted"  # removed, replaced or gone


TRANSITIONS: dict[CheckpointState, frozenset[CheckpointState]] = {
    CheckpointState.AVAILABLE: frozenset({CheckpointState.CORRUPT, CheckpointState.DELETED}),
    # A look at the files is worth more than what was said before: a disk may have been away for a while.
    CheckpointState.CORRUPT: frozenset({CheckpointState.AVAILABLE, CheckpointState.DELETED}),
    CheckpointState.DELETED: frozenset({CheckpointState.AVAILABLE, CheckpointState.CORRUPT}),
}


def transition(current: CheckpointState, target: CheckpointState) -> CheckpointState:
    if target is not current and target not in TRANSITIONS[current]:
        allowed = ", ".join(sorted(TRANSITIONS[current]))
        raise InvalidTransition(f"a checkpoint that is {current} cannot become {target}; possible: {allowed}")
    return target


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """A checkpoint at one place. It may be at several: a folder, a store."""

    id: str
    run_id: str
    attempt: int
    step: int
    location: str  # a folder of the nodes, or an address
    tier: str
    size_bytes: int
    file_count: int
    world_size: int
    plan: str
    format: str
    reason: str
    metrics: Mapping[str, float]
    state: CheckpointState
    detail: str | None  # why it is corrupt or gone
    created_at: float
    verified_at: float | None  # when its files were last found as they should be
    epoch: int | None = None

    @property
    def is_good(self) -> bool:
        return self.state is CheckpointState.AVAILABLE

    def is_same(self, other: CheckpointRecord) -> bool:
        """The same checkpoint, here or at another place."""
        return (self.run_id, self.step, self.created_at) == (other.run_id, other.step, other.created_at)


def checkpoint_id(run_id: str, location: str, created_at: float) -> str:
    """Made from what a checkpoint is, so that one that is told of twice is there once."""
    number = int.from_bytes(hashlib.sha256(f"{run_id}\n{location}\n{created_at!r}".encode()).digest(), "big")
    letters = []
    for _ in range(_ID_LENGTH):
        number, rest = divmod(number, len(ALPHABET))
        letters.append(ALPHABET[rest])
    return f"c-{''.join(letters)}"
