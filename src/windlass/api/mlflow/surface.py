"""All of MLflow's API that there is, as routes of the application."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fastapi import Request, Response
from starlette.routing import BaseRoute, Match, Route

from windlass.api.mlflow import (
    artifacts,
    assessments,
    datasets,
    deployments,
    experiments,
    gateway,
    issues,
    labels,
    models,
    otlp,
    promptlab,
    questions,
    registry,
    reviews,
    runs,
    scorers,
    traces,
    webhooks,
)
from windlass.api.mlflow.calls import guarded
from windlass.api.mlflow.errors import MlflowError

# The version of MLflow whose API this is. Its clients ask before they send spans.
VERSION = "3.15.1"
_ANY = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def mlflow_routes() -> list[BaseRoute]:
    named = (
        experiments,
        runs,
        models,
        artifacts,
        registry,
        webhooks,
        traces,
        assessments,
        datasets,
        scorers,
        issues,
        labels,
        reviews,
        gateway,
        deployments,
        promptlab,
        questions,
    )
    known = [
        *(route for module in named for route in module.calls.routes()),
        *artifacts.streams,
        *otlp.routes,
        *questions.routes,
        Route("/version", _version, include_in_schema=False),
    ]
    others = [f"/{kind}/{version}.0/mlflow/{{rest:path}}" for kind in ("api", "ajax-api") for version in (2, 3)]
    answer = guarded(partial(_unknown, known))
    return [*known, *(Route(path, answer, methods=_ANY, include_in_schema=False) for path in others)]


async def _version(_request: Request) -> Response:
    return Response(VERSION, media_type="text/plain")


async def _unknown(known: Sequence[BaseRoute], request: Request) -> Response:
    if any(route.matches(request.scope)[0] is Match.PARTIAL for route in known):
        return Response("Method Not Allowed", 405, media_type="text/plain")
    raise MlflowError("ENDPOINT_NOT_FOUND", f"there is no {request.method} {request.url.path} here")
