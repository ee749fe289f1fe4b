"""Programs that use the real `mlflow` package, in processes of their own: it brings threads, hooks and warnings along
that are nobody's business here. They are forked from one that has loaded it, which takes longer than most of what they
do. What a program keeps in `result` comes back."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.testing.nursery import Nursery

Program = Callable[[str], dict[str, Any]]
_PATIENCE_S = 120
_NURSERY = Nursery(
    "mlflow", "mlflow.pyfunc", environ={"MLFLOW_DISABLE_TELEMETRY": "true", "GIT_PYTHON_REFRESH": "quiet"}
)
_AROUND = """
import json, sys
import mlflow
from mlflow import MlflowClient
client = MlflowClient()
result = {{}}
{program}
json.dump(result, open(sys.argv[1], "w"))
"""


def environment(url: str, token: str | None = None) -> dict[str, str]:
    """Of a program that logs to a server."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW", "WINDLASS"))}
    told = {
        "MLFLOW_TRACKING_URI": url,
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "GIT_PYTHON_REFRESH": "quiet",
    }
    return {**kept, **told, **({"MLFLOW_TRACKING_TOKEN": token} if token else {})}


def run_program(program: str, environ: dict[str, str], folder: Path) -> dict[str, Any]:
    kept, said = folder / "result.json", folder / "program.out"
    with said.open("wb") as output:
        child = _NURSERY.start(
            _AROUND.format(program=program), str(kept), environ=environ, output=output.fileno(), folder=folder
        )
    try:
        code = child.wait(_PATIENCE_S)
    finally:
        child.kill()
    assert code == 0, said.read_text(errors="replace")
    result: dict[str, Any] = json.loads(kept.read_text())
    return result
