"""When is a loss or a gradient sick? A rule over the numbers of each step, with a memory of what is usual.

Pure: numbers in, a finding or nothing out. The same numbers on all processes give the same findings on all of them.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

from windlass.core.errors import WindlassError
from windlass.core.plan import OnNan

USUAL_STEPS = 128  # what "usual" is taken from
LEAST_STEPS = 50  # before this many nothing is called unusual: a loss falls fast at first, and gradients with it
CALM_STEPS = 50  # so many healthy steps end an episode; one alert an episode
MOST_SKIPPED = 20  # explosions in a row; if there are more, gradients are that large now
MOST_OVERFLOWS = 20  # a loss scale halves with each: more in a row are not a matter of scale


class SickStep(WindlassError):
    """Training stopped because of a loss or gradient, as the plan's `on_nan: stop` asks."""

    code = "sick_step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    kind: str  # nan, or exploded
    step: int
    message: str
    new_episode: bool


class Median:
    """The median of the last values, kept in order as they come and go."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._recent: deque[float] = deque()
        self._ordered: list[float] = []

    def __len__(self) -> int:
        return len(self._recent)

    def add(self, value: float) -> None:
        if len(self._recent) == self._size:
            oldest = self._recent.popleft()
            del self._ordered[bisect_left(self._ordered, oldest)]
        self._recent.append(value)
        insort(self._ordered, value)

    @property
    def value(self) -> float:
        return self._ordered[len(self._ordered) // 2]


Trouble = tuple[str, str]  # the kind, and words


class Norms:
    """What is usual of the gradients of one optimizer."""

    def __init__(self) -> None:
        self._usual = Median(USUAL_STEPS)
        self._overflows = 0
        self.exploded_in_a_row = 0

    def look(self, norm: float, *, explode: float | None, scaled: bool) -> Trouble | None:
        if not math.isfinite(norm):
            self._overflows += 1
            if scaled and self._overflows <= MOST_OVERFLOWS:
                return None
            again = f" for {self._overflows} steps, whatever the loss scale" if scaled else ""
            return "nan", f"the gradient's norm is {norm}{again}"
        self._overflows = 0
        if explode is not None and len(self._usual) >= LEAST_STEPS and norm > explode * self._usual.value:
            self.exploded_in_a_row += 1
            return "exploded", f"the gradient's norm is {norm:.4g}, and {self._usual.value:.4g} is usual"
        self.exploded_in_a_row = 0
        self._usual.add(norm)
        return None


class Losses:
    """What is usual of the losses."""

    def __init__(self) -> None:
        self._usual = Median(USUAL_STEPS)
        self._highest_at_first = -math.inf

    def look(self, loss: float, *, explode: float | None) -> Trouble | None:
        if not math.isfinite(loss):
            return "nan", f"the loss is {loss}"
        if explode is not None and len(self._usual) >= LEAST_STEPS:
            usual = self._usual.value
            # A loss near zero varies by large factors: above where it began it has certainly gone wrong.
            if loss > explode * max(usual, 0.0) and loss > self._highest_at_first:
                return "exploded", f"the loss is {loss:.4g}, and {usual:.4g} is usual"
        if len(self._usual) < LEAST_STEPS:
            self._highest_at_first = max(self._highest_at_first, loss)
        self._usual.add(loss)
        return None


class Watch:
    """Looks at every step once, in order. Who must know of a gradient before it is applied looks at its norm first."""

    def __init__(self, explode: float | None) -> None:
        self.explode = explode  # how many times the usual is an explosion; None: nothing is
        self._norms, self._losses = Norms(), Losses()
        self._norms_seen_to = -1  # the last step whose norm was looked at before
        self._last_sick: int | None = None

    def look(self, step: int, *, loss: float | None, grad_norm: float | None, scaled: bool = False) -> Finding | None:
        """`scaled`: the loss is multiplied by a scale that is still being found, so overflows are part of the plan."""
        of_loss = None if loss is None else self._losses.look(loss, explode=self.explode)
        of_norm = None
        if grad_norm is not None and step > self._norms_seen_to:
            of_norm = self._norms.look(grad_norm, explode=self.explode, scaled=scaled)
        loss_is_first = of_norm is None or (of_loss is not None and of_loss[0] == "nan")
        return self._finding(step, of_loss if loss_is_first else of_norm)

    def look_at_norm(self, step: int, norm: float, norms: Norms, *, scaled: bool = False) -> Finding | None:
        """Before the step is applied; `look` leaves the norm of this step alone then."""
        self._norms_seen_to = max(step, self._norms_seen_to)
        return self._finding(step, norms.look(norm, explode=self.explode, scaled=scaled))

    def _finding(self, step: int, trouble: Trouble | None) -> Finding | None:
        if trouble is None:
            return None
        # Losses are looked at some steps after norms.
        new_episode = self._last_sick is None or abs(step - self._last_sick) > CALM_STEPS
        self._last_sick = max(step, self._last_sick or 0)
        kind, words = trouble
        return Finding(kind=kind, step=step, message=f"step {step}: {words}", new_episode=new_episode)


def decide_stop(finding: Finding, policy: OnNan) -> SickStep | None:
    """The error that ends the run, if the plan asks for that."""
    if policy is not OnNan.STOP:
        return None
    return SickStep(finding.message, hint="the plan says on_nan=stop; go_on and skip are the other options")
