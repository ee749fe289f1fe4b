"""Starts the agent by path, in any interpreter: `python .../agent/__main__.py supervise|warm ...`.

The loop at the end is a trampoline: a process forked from a warm launcher leaves all of our frames before it runs
the user's script, and ends as any Python process ends.
"""

import importlib.util
import os
import sys
from typing import Any

_PACKAGE = "_windlass_agent"


def _load() -> Any:
    folder = os.path.dirname(os.path.abspath(__file__))
    # The interpreter has put the folder of this file first; the user's imports must not see what is in it.
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != folder]
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[_PACKAGE] = package
    spec.loader.exec_module(package)
    return importlib.import_module(_PACKAGE + ".entry")


if __name__ == "__main__":
    step = _load().start(sys.argv[1:])
    while step is not None:
        step = step()
