"""When a checkpoint is due: every so many steps, or every so often by rank 0's clock."""

from __future__ import annotations

from windlass.core.errors import InvalidInput
from windlass.core.quantities import parse_duration


class Interval:
    def __init__(self, every: int | float | str) -> None:
        self.steps: int | None = None
        self.seconds: float | None = None
        if isinstance(every, int) and not isinstance(every, bool):
            self.steps = every
        else:
            self.seconds = parse_duration(every)
        if (self.steps or self.seconds or 0) <= 0:
            raise InvalidInput(f"every is {every!r}; write a number of steps from 1, or a time such as '10m'")

    def is_due(self, step: int, *, since_last_s: float) -> bool:
        if self.steps is not None:
            return step % self.steps == 0
        assert self.seconds is not None
        return since_last_s >= self.seconds
