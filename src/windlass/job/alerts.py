"""How often a process may raise alerts of one kind: a loop that raises one at every step must not flood the record."""

from __future__ import annotations

_AT_ONCE = 5
_EVERY_S = 60.0
_MOST_KINDS = 100
_OTHERS = ""  # all kinds beyond those share one allowance


class AlertGate:
    """Lets a few alerts of a kind through at once, then one a minute, and counts those in between."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[float, float]] = {}  # by kind: how many may pass, as of when
        self._held_back: dict[str, int] = {}

    def let_through(self, kind: str, now: float) -> int | None:
        """How many were held back since the last that passed, if this one may pass; else None."""
        if kind not in self._left and len(self._left) >= _MOST_KINDS:
            kind = _OTHERS
        left, since = self._left.get(kind, (float(_AT_ONCE), now))
        left = min(float(_AT_ONCE), left + (now - since) / _EVERY_S)
        if left < 1:
            self._left[kind] = (left, now)
            self._held_back[kind] = self._held_back.get(kind, 0) + 1
            return None
        self._left[kind] = (left - 1, now)
        return self._held_back.pop(kind, 0)

    def last_at(self, kind: str) -> float | None:
        """When one of this kind came last, whether or not it passed."""
        return self._left[kind][1] if kind in self._left else None
