"""Starts servers of MLflow's for the suites, each a process of its own, as `launcher.py` starts ours: forked from one
that has loaded them. Runs in MLflow's environment.
"""

from __future__ import annotations

from typing import Any

import uvicorn
from forking import listen
from mlflow.server.fastapi_app import app


def _serve(order: dict[str, Any]) -> None:
    uvicorn.run(app, host="127.0.0.1", port=order["port"], log_level="error", ws="none")


if __name__ == "__main__":
    listen(_serve)
