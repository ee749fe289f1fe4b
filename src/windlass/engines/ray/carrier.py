"""The actor that holds a node's share of an attempt, and the relay below it. Runs on Ray's nodes.

It is sent by value: nothing of Windlass is installed there, so only the standard library and Ray may be imported here.
The relay is started by the constructor, so an actor that exists has been told what to do, whoever died meanwhile.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

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
    def __init__(self, keeper: str, program: str, environ: dict[str, str], kept: list[str]) -> None:
        """`keeper` and `program` are Python source; `environ` is for the relay; `kept` are variables that somebody
        asked Ray for."""
        import ray

        masters = f"{os.getpid()},{os.getppid()}"  # this worker and its raylet
        ended, keeper_end = os.pipe()
        subprocess.run(
            [sys.executable, "-c", keeper, ray.get_runtime_context().gcs_address, masters, program],
            env={**_surroundings(kept), **environ},
            stdin=subprocess.DEVNULL,
            pass_fds=[keeper_end],  # held by the keeper, and by nobody below it
            check=True,
        )
        os.close(keeper_end)
        threading.Thread(target=self._wait, args=(ended,), name="windlass-wait", daemon=True).start()

    def _wait(self, ended: int) -> None:
        os.read(ended, 1)
        os._exit(0)  # the share is not needed any more


def _surroundings(kept: list[str]) -> dict[str, str]:
    """This process's environment as ranks should find it: `python` is the interpreter that Ray chose."""
    environ = {name: value for name, value in os.environ.items() if name not in _FOR_WORKERS or name in kept}
    environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + environ.get("PATH", os.defpath)
    return environ
