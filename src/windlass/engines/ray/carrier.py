"""The actor that holds a node's share of an attempt, and the relay below it. Runs on Ray's nodes.

It is sent by value: nothing of Windlass is installed there, so only the standard library may be imported here.
The relay is started by the constructor: an actor that exists has been told what to do, whoever died meanwhile.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

_LOOK_EVERY_S = 0.2


# What Ray sets for its own workers. Ranks are none: they count their threads and handle breakpoints as anywhere else.
_FOR_WORKERS = (
    "OMP_NUM_THREADS",
    "PYTHONBREAKPOINT",
    "RAY_CLIENT_MODE",
    "RAY_JOB_ID",
    "RAY_LD_PRELOAD_ON_WORKERS",
    "RAY_RAYLET_PID",
)


class Carrier:
    def __init__(self, program: str, environ: dict[str, str], kept: list[str]) -> None:
        """`environ` is for the relay; `kept` are variables that somebody asked Ray for."""
        raylet = os.getppid()
        command = [sys.executable, "-c", program]
        command += [f"--die-with-parent-pid={pid}" for pid in (os.getpid(), raylet)]
        self._relay = subprocess.Popen(command, env={**_surroundings(kept), **environ}, stdin=subprocess.DEVNULL)
        threading.Thread(target=self._watch, args=(raylet,), name="windlass-watch", daemon=True).start()

    def _watch(self, raylet: int) -> None:
        """Ends with the relay; and with the raylet, which Ray's own workers outlive by minutes."""
        while self._relay.poll() is None:
            if os.getppid() != raylet:
                self._relay.kill()
                os._exit(1)
            time.sleep(_LOOK_EVERY_S)
        os._exit(0)


def _surroundings(kept: list[str]) -> dict[str, str]:
    """This process's environment as ranks should find it: `python` is the interpreter that Ray chose."""
    environ = {name: value for name, value in os.environ.items() if name not in _FOR_WORKERS or name in kept}
    environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + environ.get("PATH", os.defpath)
    return environ
