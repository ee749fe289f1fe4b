"""What is done about sick steps, for optimizer and meter alike: one policy, one error, one alert an episode.

An optimizer that must know of a gradient before it applies it has its norm judged first. Of everything else, the meter
learns some steps later. All processes see the same numbers, so that they decide the same; the first one tells of it.
Where they stop, each of them tells, and the record has it once: whoever comes to it first ends the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from windlass.core.plan import OnNan
from windlass.job.accounting.anomaly import MOST_SKIPPED, Finding, Norms, Watch, decide_stop

EXPLODE = 30.0  # times the usual gradient norm


class Health:
    """Of the training of one model."""

    def __init__(
        self, policy: OnNan, *, alert: Callable[..., None], explode: float | None = EXPLODE, is_main: bool = True
    ) -> None:
        self.policy = policy
        self.watch = Watch(explode)
        self._alert, self._is_main = alert, is_main
        self.done = 0  # steps that are over
        self.is_metered = False  # somebody counts them

    @property
    def reads_norms(self) -> bool:
        """Whether gradients must be looked at before they are applied."""
        return self.policy is not OnNan.GO_ON

    def applies(self, norm: float, norms: Norms, *, scaled: bool = False) -> bool:
        """Whether the step under way is to be applied; SickStep if the policy is to stop. `norms`: the optimizer's."""
        finding = self.watch.look_at_norm(self.done + 1, norm, norms, scaled=scaled)
        if finding is not None:
            self._tell(finding)
            if error := decide_stop(finding, self.policy):
                raise error
        if self.policy is OnNan.SKIP:
            return math.isfinite(norm) and not 0 < norms.exploded_in_a_row <= MOST_SKIPPED
        return True

    def judge(self, step: int, *, loss: float | None, grad_norm: float | None, scaled: bool) -> Finding | None:
        """After the step, for the meter. It stops by itself, once it has logged what it saw."""
        finding = self.watch.look(step, loss=loss, grad_norm=grad_norm, scaled=scaled)
        if finding is not None:
            self._tell(finding)
        return finding

    def _tell(self, finding: Finding) -> None:
        stops = self.policy is OnNan.STOP
        if finding.new_episode and (self._is_main or stops):
            self._alert(finding.kind, finding.message, step=finding.step, once=stops)
