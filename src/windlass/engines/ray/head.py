"""A Ray head of our own on this machine: started when it is not there, and left running."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from windlass.core.errors import Unavailable

_NOTE = "head.json"
_START_PATIENCE_S = 60.0
_LONGEST_FOLDER = 40  # Ray puts sockets below it, and the kernel has a limit for their paths


def local_head(folder: Path, *, cpus: int | None, gpus: int | None) -> str:
    """The address of the head whose note is in `folder`; it is started if it does not answer."""
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / _NOTE
    if note.exists():
        port = int(json.loads(note.read_text())["port"])
        if _answers(port):
            return _address(port)
    port = _free_port()
    # Written first: a head that was started and forgotten would be started again and again.
    note.write_text(json.dumps({"port": port}))
    with (folder / "head.log").open("ab") as log:
        command = render_head_command(folder, port=port, cpus=cpus, gpus=gpus)
        subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=_START_PATIENCE_S, check=False
        )
    deadline = time.monotonic() + _START_PATIENCE_S
    while not _answers(port):
        if time.monotonic() > deadline:
            raise Unavailable(f"the Ray head of {folder} does not start; see {folder / 'head.log'}")
        time.sleep(0.1)
    return _address(port)


def render_head_command(folder: Path, *, port: int, cpus: int | None, gpus: int | None) -> Sequence[str]:
    command = [
        str(Path(sys.executable).with_name("ray")),
        "start",
        "--head",
        f"--port={port}",
        "--ray-client-server-port=0",
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


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
