"""Calls of runs: params, metrics, tags, inputs, search."""

from __future__ import annotations

from windlass.api.mlflow.calls import Calls

calls = Calls()
