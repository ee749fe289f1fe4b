"""The code of a recipe: the parts of this installation of Windlass that run inside a job. They are sent along with the
run, so that nodes need no Windlass of their own and the record says exactly which code it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import windlass

_PARTS = ("agent", "blobs", "core", "job", "planning")


def package_root() -> Path:
    """The folder that `import windlass` found it in."""
    return Path(windlass.__file__).resolve().parent.parent


def package_files() -> Iterator[str]:
    """Relative to that folder. Of some other parts `windlass.job` wants nothing: they are not there on nodes."""
    root = package_root()
    yield "windlass/__init__.py"
    for part in _PARTS:
        for path in sorted((root / "windlass" / part).rglob("*.py")):
            yield path.relative_to(root).as_posix()
