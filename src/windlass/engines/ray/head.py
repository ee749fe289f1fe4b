"""A Ray head of our own on this machine: started when it is not there, and left running."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from windlass.agent.ports import free_ports
from windlass.core.errors import Unavailable

MARK = "WINDLASS_RAY_HEAD"  # in the environment of all its processes, for whoever wants to end them
_NOTE = "head.json"
_START_PATIENCE_S = 60.0
_LONGEST_FOLDER = 40  # Ray puts sockets below it, and the kernel has a limit for their paths


def local_head(folder: Path, *, cpus: int | None, gpus: int | None) -> str:
    """The address of the head whose note is in `folder`; it is started if it does not answer."""
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / _NOTE
    if note.exists():
        port = int(json.loads(note.read_text())["port"])
        if answers("127.0.0.1", port):
            return _address(port)
    port, client_port = free_ports(2)
    # Written first: a head that was started and forgotten would be started again and again.
    note.write_text(json.dumps({"port": port}))
    command = render_head_command(folder, port=port, client_port=client_port, cpus=cpus, gpus=gpus)
    with (folder / "head.log").open("ab") as log:
        started = subprocess.run(
            command,
            env={**os.environ, MARK: str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=_START_PATIENCE_S,
            check=False,
        )
    if started.returncode != 0 or not answers("127.0.0.1", port):
        raise Unavailable(f"the Ray head of {folder} does not start; see {folder / 'head.log'}")
    return _address(port)


def render_head_command(
    folder: Path, *, port: int, client_port: int, cpus: int | None, gpus: int | None
) -> Sequence[str]:
    command = [
        str(Path(sys.executable).with_name("ray")),
        "start",
        "--head",
        f"--port={port}",
        f"--ray-client-server-port={client_port}",
        "--include-dashboard=false",
        "--disable-usage-stats",
    ]
    if len(str(folder)) <= _LONGEST_FOLDER:
        command.append(f"--temp-dir={folder / 'r'}")
    if cpus is not None:
        command.append(f"--num-cpus={cpus}")
    if gpus is not None:
        command.append(f"--num-gpus={gpus}")
    return command


def _address(port: int) -> str:
    return f"127.0.0.1:{port}"


def answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True
