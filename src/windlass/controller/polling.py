"""Asking an engine what became of attempts, so that one which cannot be made out keeps no other from moving on."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from windlass.core.errors import Unavailable
from windlass.engines.contract import Engine, Observation, Phase

log = logging.getLogger(__name__)


class Poller:
    """Not thread-safe: one controller loop owns it. Remembers what it has complained about, no more."""

    def __init__(self) -> None:
        self._puzzles: dict[str, str] = {}  # by attempt, while it lasts

    def poll(self, engine: Engine, attempt_ids: Sequence[str]) -> dict[str, Observation]:
        """Raises Unavailable like the engine. Programs may write what they like into their node's folder, and machines
        that lose power cut files short: an attempt over which the engine stumbles is unknown, and the others are not.
        """
        try:
            found = dict(engine.poll(attempt_ids))
        except Unavailable:
            raise
        except Exception as error:
            if len(attempt_ids) == 1:
                return {attempt_ids[0]: self._puzzle(attempt_ids[0], error)}
            middle = len(attempt_ids) // 2
            return self.poll(engine, attempt_ids[:middle]) | self.poll(engine, attempt_ids[middle:])
        if self._puzzles:
            for attempt_id in attempt_ids:
                self._puzzles.pop(attempt_id, None)
        return found

    def _puzzle(self, attempt_id: str, error: Exception) -> Observation:
        text = f"its state cannot be made out: {type(error).__name__}: {error}"
        if self._puzzles.get(attempt_id) != text:
            log.error("attempt %s: %s", attempt_id, text, exc_info=error)
            self._puzzles[attempt_id] = text
        return Observation(phase=Phase.UNKNOWN, detail=text)
