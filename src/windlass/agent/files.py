"""Small JSON files that appear whole or not at all. Readers may look at any moment, also after a crash."""

from __future__ import annotations

import json
import os
from typing import Any


def write_json(path: str, value: Any, *, mode: int = 0o644) -> None:
    """Replace `path` atomically; on any failure the old content stays and nothing is left over."""
    draft = "%s.%d.tmp" % (path, os.getpid())
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with open(fd, "wb", buffering=0) as file:
            write_all(file.fileno(), json.dumps(value, separators=(",", ":")).encode())
        os.replace(draft, path)
    except OSError:
        if os.path.lexists(draft):
            os.unlink(draft)
        raise


def read_json(path: str) -> dict[str, Any] | None:
    """The object in `path`, or None if there is no such file."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read())
    except FileNotFoundError:
        return None
    if not isinstance(value, dict):
        raise ValueError("%s holds %s where an object belongs" % (path, type(value).__name__))
    return value


def read_if_whole(path: str) -> dict[str, Any] | None:
    """The object in `path`; None where there is none that can be read and understood. For what tells and decides
    nothing: programs may write what they like here, and machines that lose power cut files short."""
    try:
        return read_json(path)
    except (OSError, ValueError, RecursionError):
        return None


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
