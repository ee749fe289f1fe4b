"""Calls of logged models."""

from __future__ import annotations

from windlass.api.mlflow.calls import Calls

calls = Calls()
