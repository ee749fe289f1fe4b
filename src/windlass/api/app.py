"""The FastAPI application over given services."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

import windlass
from windlass.api.context import Services, require_token
from windlass.api.errors import install_error_handlers
from windlass.api.later import Later, Shortcut
from windlass.api.routes import (
    artifacts,
    checkpoints,
    comparison,
    exposition,
    following,
    imports,
    lineage,
    nodes,
    notes,
    queue,
    runs,
    savedviews,
    server,
    snapshots,
    webhooks,
)
from windlass.wire.cluster import ErrorBody
from windlass.wire.spec import RunSpec

_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text}
    for status, text in {
        400: "cannot be read",
        401: "no valid token",
        404: "no such thing",
        409: "in a state that forbids this",
        410: "over for good",
        413: "over a size limit",
        422: "breaks a rule",
        503: "a part that is needed is away",
        507: "no room left",
    }.items()
}


_MLFLOW = (
    "/api/2.0/",
    "/api/3.0/",
    "/ajax-api/",
    "/graphql",
    "/v1/traces",
    "/get-artifact",
    "/model-versions/",
    "//model-versions/",
    "/version",
)


def create_app(services: Services) -> FastAPI:
    app = FastAPI(
        title="Windlass",
        version=windlass.__version__,
        description="Submit, follow, cancel and resume training runs.",
        responses=_ERRORS,
        redoc_url=None,
    )
    app.state.services = services
    install_error_handlers(app)
    for router in (server.open_router, nodes.open_router, nodes.router):
        app.include_router(router)
    guarded = [Depends(require_token)]
    for router in (
        server.router,
        exposition.router,
        comparison.router,
        notes.router,
        savedviews.router,
        lineage.router,
        imports.router,
        snapshots.router,
        runs.router,
        queue.router,
        following.router,
        checkpoints.router,
        webhooks.router,
    ):
        app.include_router(router, dependencies=guarded)
    app.include_router(artifacts.router, dependencies=guarded)
    later = Later(_MLFLOW, _mlflow_routes)
    app.router.routes.append(later)
    app.add_middleware(Shortcut, later=later)
    app.openapi = lambda: _schema(app)  # type: ignore[method-assign]
    return app


def _mlflow_routes() -> Sequence[BaseRoute]:
    from windlass.api.mlflow.surface import mlflow_routes

    return mlflow_routes()


def _schema(app: FastAPI) -> dict[str, Any]:
    """The generated schema plus the token and the spec's model (routes take specs unparsed, to answer in our words)."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        components = schema["components"]
        spec = RunSpec.model_json_schema(ref_template="#/components/schemas/{model}")
        components["schemas"] |= spec.pop("$defs", {})
        components["schemas"]["RunSpec"] = spec
        components["schemas"]["SubmitRequest"]["properties"]["spec"] = {"$ref": "#/components/schemas/RunSpec"}
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, operations in schema["paths"].items():
            if path.startswith("/api/"):
                for operation in operations.values():
                    operation["security"] = [{"token": []}]
        app.openapi_schema = schema
    return app.openapi_schema
