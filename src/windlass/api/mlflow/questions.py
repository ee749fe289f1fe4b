"""What MLflow's pages ask by GraphQL, and the calls that answer it; and what this server can do, for clients that ask
before anything else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from starlette.routing import BaseRoute, Route

from windlass.api.context import Services
from windlass.api.mlflow import artifacts, experiments, registry, runs
from windlass.api.mlflow.bodies import body_of
from windlass.api.mlflow.calls import Calls, guarded, render, services_of
from windlass.api.mlflow.fields import Asked
from windlass.api.mlflow.graphql import Document, Selection, check_size, filled, parse, project, snake
from windlass.core.errors import InvalidInput, WindlassError

calls = Calls()

_ANSWERS: Mapping[str, tuple[Calls, str, str]] = {
    "mlflowGetExperiment": (experiments.calls, "GET", "/mlflow/experiments/get"),
    "mlflowSearchDatasets": (experiments.calls, "POST", "/mlflow/experiments/search-datasets"),
    "mlflowGetRun": (runs.calls, "GET", "/mlflow/runs/get"),
    "mlflowSearchRuns": (runs.calls, "POST", "/mlflow/runs/search"),
    "mlflowGetMetricHistoryBulkInterval": (runs.calls, "GET", "/mlflow/metrics/get-history-bulk-interval"),
    "mlflowListArtifacts": (artifacts.calls, "GET", "/mlflow/artifacts/list"),
    "mlflowSearchModelVersions": (registry.calls, "GET", "/mlflow/model-versions/search"),
}
_ECHOES = ("test", "testMutation")
_MOST_BYTES = 1024 * 1024


@calls.get("/mlflow/server-info", 3)
def server_info(_services: Services, _asked: Asked) -> dict[str, Any]:
    return {
        "store_type": "SqlStore",
        "workspaces_enabled": False,
        "trace_archival_enabled": False,
        "multipart_uploads_enabled": True,
        "multipart_downloads_enabled": False,
        "artifact_serving_enabled": True,
    }


async def _ask(request: Request) -> Response:
    raw = await body_of(request, _MOST_BYTES)
    return await run_in_threadpool(_answered, services_of(request), raw)


def _answered(services: Services, raw: bytes) -> Response:
    try:
        body = json.loads(raw)
        query, name, given = body["query"], body.get("operationName"), body.get("variables") or {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InvalidInput("a question is a JSON object with a `query`") from None
    if not isinstance(query, str) or not isinstance(given, dict):
        raise InvalidInput("`query` is text and `variables` an object")
    if name is not None and not isinstance(name, str):
        raise InvalidInput("`operationName` is text")
    return render(_answer(services, query, name, given))


def _answer(services: Services, query: str, name: str | None, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Errors are part of an answer: each root field that has one is null."""
    try:
        document = parse(query)
        check_size(document)
        wanted = document.chosen(name)
    except InvalidInput as error:
        return {"data": None, "errors": [error.message]}
    data: dict[str, Any] = {}
    errors: list[str] = []
    for selection in wanted:
        try:
            data[selection.alias or selection.name] = _root(services, document, selection, variables)
        except WindlassError as error:
            data[selection.alias or selection.name] = None
            errors.append(error.message)
    return {"data": data, "errors": errors or None}


def _root(services: Services, document: Document, selection: Selection, variables: Mapping[str, Any]) -> Any:
    given = filled(dict(selection.arguments), variables)
    if selection.name in _ECHOES:
        return project(document, selection, {"output": given.get("inputString")})
    if selection.name not in _ANSWERS:
        known = ", ".join([*_ANSWERS, *_ECHOES])
        raise InvalidInput(f"Cannot query field '{selection.name}'; known: {known}")
    table, method, path = _ANSWERS[selection.name]
    told = given.get("input") or {}
    if not isinstance(told, dict):
        raise InvalidInput(f"`input` of {selection.name} is an object")
    asked = {snake(key): value for key, value in told.items()}
    found: Any = table.answer(services, method, path, asked) or {}
    if selection.name == "mlflowGetRun":
        found = {**found, "run": _with_more(services, found["run"])}
    return project(document, selection, found)


def _with_more(services: Services, run: dict[str, Any]) -> dict[str, Any]:
    """A run with its experiment and the model versions that came of it."""
    info = run["info"]
    given = {"experiment_id": info["experiment_id"]}
    experiment: Any = experiments.calls.answer(services, "GET", "/mlflow/experiments/get", given)
    given = {"filter": f"run_id='{info['run_id']}'"}
    versions: Any = registry.calls.answer(services, "GET", "/mlflow/model-versions/search", given)
    return {**run, "experiment": experiment["experiment"], "model_versions": versions.get("model_versions", [])}


routes: list[BaseRoute] = [Route("/graphql", guarded(_ask), methods=["POST"], include_in_schema=False)]
