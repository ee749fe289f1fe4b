"""Where a home's sockets lie. The kernel allows 108 bytes for a socket's path, and homes can be deep."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from windlass.core.errors import Unavailable

_LONGEST_PATH_BYTES = 100
_LONGEST_NAME = "warm/plain-0123456789.sock"


def socket_dir(home: Path) -> Path:
    """The home itself or, for a long path, a short private folder that stands for it."""
    if len(os.fsencode(home / _LONGEST_NAME)) <= _LONGEST_PATH_BYTES:
        return home
    digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"windlass-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or folder.is_symlink():
        raise Unavailable(f"{folder} belongs to somebody else or is open to others; remove it")
    return folder
