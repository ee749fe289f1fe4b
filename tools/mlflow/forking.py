"""What both launchers of servers do: fork one for every line of JSON that comes in, and answer with its process id."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any


def listen(serve: Callable[[dict[str, Any]], object]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for line in sys.stdin:
        order = json.loads(line)
        if (pid := os.fork()) == 0:
            _become(order)
            serve(order)
            os._exit(0)
        print(pid, flush=True)


def _become(order: dict[str, Any]) -> None:
    """Take on the environment and the output that are ordered."""
    os.environ.clear()
    os.environ.update(order["environ"])
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, place in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, place)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
