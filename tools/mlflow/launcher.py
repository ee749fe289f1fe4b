"""Starts servers for the suites, which want a fresh one for every test: forked from a process that has loaded them, in
home folders whose databases have their tables already. Orders come as lines of JSON; answers are process ids.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import windlass.api.mlflow.surface  # noqa: F401 - what a server would load with its first call
from windlass.db.database import Database, sqlite_url
from windlass.db.migrate import migrate
from windlass.server.__main__ import main

_TABLES = "windlass.db"


def _prepare(folder: Path) -> None:
    """Tables alone: what else a server puts into a new database depends on its settings."""
    if (pid := os.fork()) == 0:
        db = Database(sqlite_url(folder / _TABLES))
        migrate(db)
        db.close()
        os._exit(0)
    os.waitpid(pid, 0)


def _serve(order: dict[str, Any]) -> int:
    os.environ.clear()
    os.environ.update(order["environ"])
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, place in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, place)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return main(["--home", order["home"], "--port", str(order["port"]), "--no-auth"])


def _listen(prepared: Path) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for line in sys.stdin:
        order = json.loads(line)
        home = Path(order["home"])
        home.mkdir(parents=True)
        shutil.copy2(prepared / _TABLES, home)
        if (pid := os.fork()) == 0:
            os._exit(_serve(order))
        print(pid, flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="wl-prepared-") as folder:
        _prepare(Path(folder))
        _listen(Path(folder))
