"""What an environment consists of: interpreter and installed packages. Runs as a program of its own, in the
interpreter it describes, beside the ranks: `python probe.py FACTS_JSON ENVIRONMENT_FILE CACHE_FILE`.

Standard library only and self-contained: it is executed by path, without its package.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def folder_times(paths: list[str]) -> dict[str, int]:
    """Installing or removing a package changes the time of its folder."""
    return {path: os.stat(path).st_mtime_ns for path in paths if os.path.isdir(path)}


def describe_interpreter() -> dict[str, Any]:
    import platform
    from importlib import metadata

    packages = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            packages[str(name)] = str(distribution.version)
    return {
        "python": sys.executable,
        "python_version": platform.python_version(),
        "packages": dict(sorted(packages.items())),
    }


def _store(path: str, value: dict[str, Any]) -> None:
    """Whole or not there, also after lost power. It may take its time: nobody waits for this program."""
    draft = "%s.%d.tmp" % (path, os.getpid())
    try:
        with open(draft, "w") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:
        if os.path.lexists(draft):
            os.unlink(draft)
        raise


def main(facts: str, environment_path: str, cache_path: str) -> None:
    own_folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != own_folder]
    found = describe_interpreter()
    _store(environment_path, dict(json.loads(facts), **found))
    _store(cache_path, {"folders": folder_times(sys.path), "environment": found})


if __name__ == "__main__":
    main(*sys.argv[1:])
