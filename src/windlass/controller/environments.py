"""Environments of attempts that were over before it was known what they ran with: that is found out beside them, and
the first run of an interpreter may be done sooner. Looked for a while longer; remembered in memory only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from windlass.agent import layout
from windlass.agent.files import read_if_whole

_PATIENCE_S = 120.0
_MOST = 1_000


class LateEnvironments:
    """Not thread-safe: one controller loop owns it."""

    def __init__(self) -> None:
        self._awaited: dict[str, tuple[str, float]] = {}  # by attempt: the file, and until when it is looked for

    def await_of(self, attempt_id: str, log_dirs: Sequence[str], now: float) -> None:
        """Nodes elsewhere send theirs with their last report; there is nothing to wait for."""
        if log_dirs and os.path.isabs(log_dirs[0]) and len(self._awaited) < _MOST:
            self._awaited[attempt_id] = (os.path.join(log_dirs[0], layout.ENVIRONMENT), now + _PATIENCE_S)

    def take(self, now: float) -> dict[str, Mapping[str, Any]]:
        """Those that have come, each once. One that cannot be read, say on a disk that is away, may still come."""
        found: dict[str, Mapping[str, Any]] = {
            id: data for id, (path, _) in self._awaited.items() if (data := read_if_whole(path)) is not None
        }
        late = {id: one for id, one in self._awaited.items() if id not in found and now < one[1]}
        self._awaited = late
        return found
