"""What would help is said where the error itself does not say it."""

from __future__ import annotations

import pytest

from windlass.agent.advice import explain
from windlass.agent.failure import describe_failure
from windlass.agent.verdict import Verdict

PLAN = {"node_name": "a", "node_gpus": 8, "gpu_indices": []}
# As MLflow 3's client says it.
OTHER = (
    "mlflow.exceptions.MlflowException: Cannot start run with ID r-mwz9d2ahk4 because active experiment ID does not"
    " match environment run ID. Make sure --experiment-name or --experiment-id matches experiment set with"
    " set_experiment(), or just use command-line arguments"
)


@pytest.mark.parametrize(
    ("error", "advised"),
    [
        (OTHER, "--experiment NAME"),
        ("RuntimeError: No CUDA GPUs are available", "--gpus 1"),
        ("ValueError: active experiment", None),
    ],
)
def test_a_known_error_is_told_with_what_helps(error: str, advised: str | None) -> None:
    tail = f'Traceback (most recent call last):\n  File "/w/train.py", line 3, in <module>\n    main()\n{error}\n'
    found = describe_failure(rank=0, exit_code=1, signal_number=None, stderr_tail=tail.encode(), kernel_oom=False)
    before = Verdict(found.reason, found.message, 1, rank=0)
    after = explain(before, PLAN)
    if advised is None:
        assert after == before
    else:
        assert after.message.startswith(before.message)
        assert advised in after.message
