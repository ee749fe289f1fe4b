"""What the token of a run opens: reading, logging to that run and to runs that its programs make, and registering what
they made. Nothing that others have is deleted, renamed or moved with it, no other run of Windlass's own is written to,
and webhooks and secrets are none of its business. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from windlass.api.mlflow.errors import MlflowError
from windlass.core.ids import RUN_ID

_CLOSED = re.compile(
    r"/(?:delete(?!-tag\b)[\w-]*|restore|rename|transition-stage|experiments/(?:update|set-experiment-tag|delete-experiment-tag)"
    r"|webhooks\b.*|gateway\b.*|issues\b.*|label-schemas\b.*|review-queues\b.*|registered-models/(?:update|delete-tag))(?:/|$)"
)
_TAGS = re.compile(r"/tags?(?:/[^/]*)?$")
_RUNS = ("run_id", "run_uuid")


def check_path(own: str, method: str, path: str) -> None:
    """`own`: the run whose token it is. Raises MlflowError."""
    if _CLOSED.search(path) or (method == "DELETE" and not _TAGS.search(path)):
        raise _denied(own, f"{method} {path}")
    if method != "GET" and "/mlflow-artifacts/" in path:
        for part in path.split("/"):
            _check_run(own, part)


def check_values(own: str, method: str, values: Mapping[str, Any]) -> None:
    """Of a call. Raises MlflowError."""
    if method != "GET":
        for name in _RUNS:
            _check_run(own, values.get(name))


def _check_run(own: str, run_id: Any) -> None:
    if isinstance(run_id, str) and run_id != own and RUN_ID.fullmatch(run_id):
        raise _denied(own, f"writing to run {run_id}")


def _denied(own: str, what: str) -> MlflowError:
    return MlflowError(
        "PERMISSION_DENIED", f"{what} is not open to the token of run {own}: use the server's token for that"
    )
