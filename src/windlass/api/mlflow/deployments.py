"""Calls of MLflow's pages that a deployments server answers."""

from __future__ import annotations

from typing import Any

from windlass.api.context import Services
from windlass.api.mlflow.calls import Calls
from windlass.api.mlflow.fields import Asked, anything, text

calls = Calls()


@calls.get("/mlflow/gateway-proxy", gateway_path=text())
def look(services: Services, asked: Asked) -> Any:
    return services.deployments.ask("GET", asked["gateway_path"])


@calls.post("/mlflow/gateway-proxy", gateway_path=text(), json_data=anything())
def call(services: Services, asked: Asked) -> Any:
    return services.deployments.ask("POST", asked["gateway_path"], asked["json_data"])
