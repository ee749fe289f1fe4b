"""Where the embedded server keeps its things: WINDLASS_HOME, or ~/.windlass."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def default_home(environ: Mapping[str, str] = os.environ) -> Path:
    return Path(environ.get("WINDLASS_HOME") or Path.home() / ".windlass").expanduser().absolute()
