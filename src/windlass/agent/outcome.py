"""The end of a node's part in an attempt, written down so that neither a full disk nor a crash loses it."""

from __future__ import annotations

import errno
import json
import os
from typing import Any

from . import layout
from .files import write_all

_RESERVED_BYTES = 64 * 1024
_DRAFT = layout.OUTCOME + ".part"
VERSION = 1


def exists(node_dir: str) -> bool:
    return os.path.exists(os.path.join(node_dir, layout.OUTCOME))


def reserve(node_dir: str) -> None:
    """Claim the outcome's disk blocks now, while there are some."""
    fd = os.open(os.path.join(node_dir, _DRAFT), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(fd, 0, _RESERVED_BYTES)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # a file system that cannot reserve
            raise
    finally:
        os.close(fd)


def write(node_dir: str, content: dict[str, Any]) -> None:
    """Durable when this returns. The caller holds the node's lock, so it is written once."""
    draft = os.path.join(node_dir, _DRAFT)
    data = json.dumps(dict(content, version=VERSION)).encode()
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        write_all(fd, data)
        os.ftruncate(fd, len(data))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(draft, os.path.join(node_dir, layout.OUTCOME))
    folder = os.open(node_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def never_started(reason: str, message: str, now: float, exit_code: int | None = None) -> dict[str, Any]:
    return summary(reason=reason, message=message, exit_code=exit_code, started_at=None, ended_at=now)


def summary(
    *,
    reason: str,
    message: str,
    started_at: float | None,
    ended_at: float,
    exit_code: int | None = None,
    signal_number: int | None = None,
    rank: int | None = None,
    fingerprint: str | None = None,
    about_peers: bool = False,
    traceback: str | None = None,
    trouble: str | None = None,
    ranks: list[dict[str, Any]] | None = None,
    usage: dict[str, Any] | None = None,
    dropped_log_bytes: int = 0,
) -> dict[str, Any]:
    """The one shape of an outcome, whoever writes it."""
    return {
        "reason": reason,
        "exit_code": exit_code,
        "signal": signal_number,
        "rank": rank,
        "message": message,
        "fingerprint": fingerprint,
        "about_peers": about_peers,  # the message tells of another process that is gone: another node may know more
        "traceback": traceback,
        "trouble": trouble,  # what kind it is, see `windlass.agent.remedy`
        "started_at": started_at,
        "ended_at": ended_at,
        "ranks": ranks or [],
        "usage": usage or {},
        "dropped_log_bytes": dropped_log_bytes,
    }
