"""Which way turned out to be the fastest, kept on this machine's disk for the next process: `Choices`.

A run that comes back after a failure does not look for it again. What cannot be read or written is as if it had never
been found.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path


def cache_folder() -> Path:
    """Ours among the caches of this user: `$XDG_CACHE_HOME/windlass`, else `~/.cache/windlass`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "windlass"


class Choices:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = self._read()

    def get(self, name: str, count: int) -> int | None:
        """The number of the way that was chosen among `count`; None: not known."""
        chosen = self._known.get(name)
        return chosen if type(chosen) is int and 0 <= chosen < count else None

    def put(self, name: str, chosen: int) -> None:
        # Other processes have found theirs meanwhile. One that writes at the very same time may be forgotten.
        self._known = {**self._read(), **self._known, name: chosen}
        temporary = self._path.with_name(f"{self._path.name}.{secrets.token_hex(4)}.tmp")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(self._known, indent=1, sort_keys=True))
            temporary.replace(self._path)

    def _read(self) -> dict[str, object]:
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(self._path.read_text())
            if isinstance(found, dict):
                return found
        return {}
