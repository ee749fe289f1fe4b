"""What MLflow's words for the state of a run are in ours: every search, comparison and graph says the same."""

from __future__ import annotations

from collections.abc import Mapping

from windlass.experiments.types import RunStatus
from windlass.runs.types import RunState

STATE_OF_STATUS: Mapping[str, str] = {
    RunStatus.SCHEDULED: RunState.QUEUED,
    RunStatus.RUNNING: RunState.RUNNING,
    RunStatus.FINISHED: RunState.SUCCEEDED,
    RunStatus.FAILED: RunState.FAILED,
    RunStatus.KILLED: RunState.CANCELLED,
}


def state_of(status: str) -> str:
    return STATE_OF_STATUS.get(status, status.lower())
