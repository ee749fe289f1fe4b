"""When a node's next report is due: at once for what decisions depend on, soon for what people watch, rarely for the
rest, and ever more rarely while the server is away. Pure: the time is an argument."""

from __future__ import annotations

BACKOFF_S = (0.2, 5.0)
_BEAT_S = 3.0  # how often the server hears from a node that has nothing to say, until it wishes something else
_YOUNG_S = 10.0  # so long everything is sent soon: most runs are watched when they begin
_SOON_S = 0.1


class Pace:
    def __init__(self, now: float) -> None:
        self._began = now
        self._sent_at = now - _BEAT_S
        self._pause_s = _SOON_S
        self._beat_s = _BEAT_S
        self._backoff_s = 0.0
        self._has_more = False

    def is_due(self, now: float, *, has_news: bool, is_urgent: bool) -> bool:
        since_s = now - self._sent_at
        if since_s < self._backoff_s:
            return False
        if is_urgent or self._has_more:
            return True
        return since_s >= (self._gathering_s(now) if has_news else self._beat_s)

    def sent(self, now: float) -> None:
        self._sent_at = now

    def heard(self, pause_s: float, beat_s: float, *, has_more: bool) -> None:
        self._pause_s = pause_s
        self._beat_s = beat_s
        self._backoff_s = 0.0
        self._has_more = has_more

    def failed(self) -> None:
        first_s, most_s = BACKOFF_S
        self._backoff_s = min(most_s, max(first_s, self._backoff_s * 2))

    def wait_s(self, now: float) -> float:
        """How long there is nothing to look for."""
        if self._backoff_s:
            return max(0.0, self._sent_at + self._backoff_s - now)
        return 0.0 if self._has_more else min(self._gathering_s(now), self._beat_s)

    def _gathering_s(self, now: float) -> float:
        """New lines wait this long for more of them."""
        return min(self._pause_s, _SOON_S) if now - self._began < _YOUNG_S else self._pause_s
