"""The call by which MLflow's pages keep a try of a prompt as a run: its params, and a table with what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from windlass.api.context import Services
from windlass.api.mlflow.answers import run_answer
from windlass.api.mlflow.calls import Calls
from windlass.api.mlflow.fields import Asked, anything, items, text, whole
from windlass.api.mlflow.items import read_pairs
from windlass.core.errors import InvalidInput
from windlass.experiments.types import NewRun, Pair, RunStatus

calls = Calls()
_TABLE = "eval_results_table.json"
_NEEDED = ("experiment_id", "prompt_template", "prompt_parameters", "model_route", "model_input", "mlflow_version")


@calls.post(
    "/mlflow/runs/create-promptlab-run",
    experiment_id=text(),
    run_name=text(),
    tags=items(),
    prompt_template=text(),
    prompt_parameters=items(),
    model_route=text(),
    model_parameters=items(),
    model_input=text(),
    model_output=anything(),
    model_output_parameters=items(),
    mlflow_version=text(),
    user_id=text(),
    start_time=whole(),
)
def create(services: Services, asked: Asked) -> dict[str, Any]:
    for name in _NEEDED:
        if not asked[name]:
            raise InvalidInput(f"CreatePromptlabRun request must specify {name}.")
    now_ms = int(services.clock.now() * 1000)
    run = services.tracked_runs.create(
        NewRun(
            experiment_id=asked["experiment_id"],
            name=asked["run_name"],
            user=asked["user_id"] or "unknown",
            start_ms=asked["start_time"] if "start_time" in asked.given else now_ms,
            tags=read_pairs(asked["tags"], "tags"),
        )
    )
    params = [
        *_pairs(asked["model_parameters"], "model_parameters"),
        Pair("model_route", asked["model_route"]),
        Pair("prompt_template", asked["prompt_template"]),
    ]
    tags = [
        Pair("mlflow.loggedArtifacts", json.dumps([{"path": _TABLE, "type": "table"}])),
        Pair("mlflow.runSourceType", "PROMPT_ENGINEERING"),
    ]
    services.tracked_runs.log_batch(run.info.id, (), params, tags)
    services.artifact_places.put_bytes(run.info.artifact_uri, _TABLE, json.dumps(_table(asked)).encode())
    services.tracked_runs.update(run.info.id, status=RunStatus.FINISHED, end_ms=now_ms)
    return {"run": run_answer(services.tracked_runs.get(run.info.id))}


def _table(asked: Mapping[str, Any]) -> dict[str, Any]:
    given = _pairs(asked["prompt_parameters"], "prompt_parameters")
    came = _pairs(asked["model_output_parameters"], "model_output_parameters")
    columns = [*(one.key for one in given), "prompt", "output", *(one.key for one in came)]
    row = [*(one.value for one in given), asked["model_input"], asked["model_output"], *(one.value for one in came)]
    return {"columns": columns, "data": [row]}


def _pairs(given: Sequence[Any], path: str) -> list[Pair]:
    """Their values may be anything that has a text."""
    texts = [{**one, "value": str(one.get("value"))} if isinstance(one, dict) else one for one in given]
    return read_pairs(texts, path, keyed=True)
