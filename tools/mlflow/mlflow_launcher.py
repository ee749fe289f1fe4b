"""Starts servers of MLflow's for the suites, each a process of its own, as `launcher.py` starts ours: forked from one
that has loaded them. Orders come as lines of JSON; answers are process ids. Runs in MLflow's environment.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import uvicorn
from mlflow.server.fastapi_app import app


def _serve(order: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(order["environ"])
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, place in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, place)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    uvicorn.run(app, host="127.0.0.1", port=order["port"], log_level="error", ws="none")


def _listen() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            _serve(json.loads(line))
            os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    _listen()
