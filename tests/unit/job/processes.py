"""Some processes of one run, without a server: what the launcher sets, and every one's output."""

from __future__ import annotations

import os
from pathlib import Path

from tests.torch_processes import start_process
from windlass.agent.ports import free_port


def run_processes(script: str, folder: Path, *, count: int = 2, timeout_s: float = 150.0) -> list[str]:
    """Runs the script in `count` processes and returns what each printed; their metrics spools are in `folder`."""
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(count),
        "OMP_NUM_THREADS": "1",
    }
    processes = []
    try:
        for rank in range(count):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WINDLASS_NODE_DIR": str(folder)}
            environ = {**os.environ, **shared, **own, "SM_MODEL_DIR": str(folder / "output")}
            processes.append(start_process(script, environ=environ))
        outputs = [process.communicate(timeout=timeout_s)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * count, "\n".join(outputs)
    return outputs
