"""The alert `nan` where nobody else raises it: a training that only logs and saves is judged by what it saves."""

from __future__ import annotations

import time
from collections.abc import Mapping

from windlass.job.accounting.anomaly import CALM_STEPS
from windlass.job.checkpoint.retention import not_finite
from windlass.job.session import session


class Sickness:
    """Looks at the metrics of every copy of the state. One alert an episode, whoever raised it."""

    def __init__(self) -> None:
        self._well_at = time.monotonic()
        self._last_sick: int | None = None

    def look(self, step: int, metrics: Mapping[str, float]) -> None:
        sick = not_finite(metrics)
        if "loss_scale" in metrics:  # that is found by overflows of the gradient
            sick = [name for name in sick if name != "grad_norm"]
        if not sick:
            self._well_at = time.monotonic()
            return
        is_new = self._last_sick is None or step - self._last_sick > CALM_STEPS
        self._last_sick = step
        told_at = session().alerted_at("nan")
        if is_new and session().is_main and (told_at is None or told_at < self._well_at):
            values = ", ".join(f"{name} is {metrics[name]}" for name in sick)
            session().alert("nan", f"step {step}: {values}; the last checkpoints without such values stay", step)
