"""Starts servers for the suites, which want a fresh one for every test: forked from a process that has loaded them, in
home folders whose databases have their tables already. Orders come as lines of JSON; answers are process ids.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from forking import listen

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


def _serve(order: dict[str, Any], prepared: Path) -> None:
    home = Path(order["home"])
    home.mkdir(parents=True)
    shutil.copy2(prepared / _TABLES, home)
    os._exit(main(["--home", order["home"], "--port", str(order["port"]), "--no-auth"]))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="wl-prepared-") as folder:
        _prepare(Path(folder))
        listen(lambda order: _serve(order, Path(folder)))
