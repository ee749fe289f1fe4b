"""What would help, beside what ended a rank, where the error itself does not say it. Pure."""

from __future__ import annotations

import re
from typing import Any, Mapping

from . import nogpu
from .verdict import Verdict

# MLflow's client goes on with the run that MLFLOW_RUN_ID names, but not after a script has chosen an experiment.
_OTHER_EXPERIMENT = r"Cannot start run with ID \S+ because active experiment ID does not match environment run ID"
_CHOOSE_IT = (
    "the script calls mlflow.set_experiment, and this run is in another experiment: add --experiment NAME"
    " (`experiment: NAME` in a spec), or leave the call out"
)


def explain(verdict: Verdict, plan: Mapping[str, Any]) -> Verdict:
    if verdict.reason == "exit_code" and re.search(_OTHER_EXPERIMENT, verdict.message):
        return verdict._replace(message="%s; %s" % (verdict.message, _CHOOSE_IT))
    return nogpu.explain(verdict, plan)
