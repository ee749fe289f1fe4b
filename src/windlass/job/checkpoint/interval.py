"""When a checkpoint is due: every so many steps, or every so often by rank 0's clock; and a copy in memory."""

from __future__ import annotations

import math
import re
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

from windlass.core.errors import InvalidInput
from windlass.core.quantities import parse_duration

_FIRST_S = 60.0  # a run whose node is lost early is to have something, and one that cannot save is to say so
_BARE = re.compile(r"^\s*[\d.]+\s*$")


def refuse_bare(name: str, value: Any) -> None:
    """Of a number in text nobody can tell whether it is one of steps or of seconds."""
    if isinstance(value, str) and _BARE.match(value):
        number = value.strip()
        steps = number if number.isdigit() else "a whole number"
        raise InvalidInput(
            f"{name} is {value!r}, which has no unit; write {steps} for steps, or '{number}s' for a time"
        )


class Interval:
    def __init__(self, every: int | float | str, *, name: str = "every", words: str = "") -> None:
        """`name` and `words` are for errors: of the argument, and what else it may be."""
        options = f"write a number of steps from 1, {words or 'or '}a time such as '10m'"
        self.steps: int | None = None
        self.seconds: float | None = None
        if isinstance(every, int) and not isinstance(every, bool):
            self.steps = every
        else:
            try:
                self.seconds = parse_duration(every)
            except ValueError:
                raise InvalidInput(f"{name} is {every!r}; {options}") from None
        if (self.steps or self.seconds or 0) <= 0:
            raise InvalidInput(f"{name} is {every!r}; {options}")

    def is_due(self, step: int, *, since_last_s: float, is_first: bool = False) -> bool:
        """`is_first`: there is nothing to go on from yet, so that the beginning counts as the last one."""
        if self.steps is not None:
            return step % self.steps == 0
        assert self.seconds is not None
        return since_last_s >= (min(self.seconds, max(_FIRST_S, self.seconds / 10)) if is_first else self.seconds)


class MemoryPace:
    """How many steps apart copies in memory are: as wanted, or ("auto") as close as costs little. Of one rank."""

    WORDS: ClassVar[Mapping[Any, str]] = {"auto": "auto", "off": "off", True: "auto", False: "off"}  # as YAML has them
    _COST = 0.02  # of the time of training
    _MOST_STEPS = 500

    def __init__(self, wanted: int | float | str | bool) -> None:
        word = self.WORDS.get(wanted) if isinstance(wanted, str | bool) else None
        self.is_off = word == "off"
        self._fixed = None if word else Interval(wanted, name="memory", words="'auto', 'off' or ")
        self._step_s: deque[float] = deque(maxlen=32)
        self._copy_s: deque[float] = deque(maxlen=8)

    def stepped(self, took_s: float) -> None:
        """A step of training took so long, without what was done here."""
        self._step_s.append(took_s)

    def copied(self, cost_s: float) -> None:
        self._copy_s.append(cost_s)

    def is_due(self, step: int, *, last: int, gap: int) -> bool:
        """`last`: the step of the last copy, also of one for the disk. `gap`: the `steps` that ranks have agreed on."""
        if self._fixed is not None and self._fixed.steps is not None:
            return step % self._fixed.steps == 0 and step != last
        return step >= last + gap

    @property
    def step_s(self) -> float:
        return statistics.median(self._step_s) if self._step_s else 0.0

    @property
    def steps(self) -> int:
        """From 1."""
        if self._fixed is not None and self._fixed.steps is not None:
            return self._fixed.steps
        if not self._step_s:
            return 1
        step_s = max(self.step_s, 1e-6)
        if self._fixed is not None:
            assert self._fixed.seconds is not None
            return max(1, math.ceil(self._fixed.seconds / step_s))
        cost_s = statistics.median(self._copy_s) if self._copy_s else 0.0
        return max(1, min(self._MOST_STEPS, math.ceil(cost_s / (self._COST * step_s))))
