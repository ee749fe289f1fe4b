"""Calls of artifacts, and their bytes up and down."""

from __future__ import annotations

from starlette.routing import BaseRoute

from windlass.api.mlflow.calls import Calls

calls = Calls()

# What is streamed goes past the table of calls: `guarded` endpoints of their own.
streams: list[BaseRoute] = []
