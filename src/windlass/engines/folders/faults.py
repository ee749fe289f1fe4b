"""What an operating system's error means for a launch: is it worth trying again?"""

from __future__ import annotations

import errno
from pathlib import Path

from windlass.core.errors import LaunchFailed, StorageFull, Unavailable, WindlassError

_SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EPIPE)
_STALE = (errno.ESTALE, errno.EIO, errno.ETIMEDOUT)  # a network file system that is away for a while


def explain_os_error(error: OSError, attempt_id: str, home: Path) -> WindlassError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(f"no room on the disk of {home} to start {attempt_id}")
    if error.errno in (*_SHORT_OF, *_STALE):
        return Unavailable(f"this machine cannot start {attempt_id} now: {error}")
    return LaunchFailed(f"cannot start {attempt_id} in {home}: {error}")
