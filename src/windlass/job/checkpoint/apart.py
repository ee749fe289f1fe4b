"""Processes of one run that are in no group with each other: forgotten, mostly, or each trains a model of its own.

Alone, every one of them is the first of one process. What they save must not meet: in a folder, in the node's memory,
in a store.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import torch.distributed as dist

from windlass.core.errors import InvalidInput
from windlass.job.session import session

_OWN_FOLDER = "folder=job.session().checkpoint_dir / f'rank-{job.rank}'"


def is_apart() -> bool:
    """Whether this process is one of several, and knows of no other."""
    together = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return session().world_size > 1 and not together


def refuse_shared(folder: Any, store: Any) -> None:
    """Of a process that is apart: what others would have as well."""
    mine = session()
    who = f"this process is rank {mine.rank} of {mine.world_size}, in no process group with the others"
    if folder is None:
        raise InvalidInput(
            f"{who}: each of them would save its own state as that of all, in one folder; call job.init() before "
            f"job.checkpoints(...), or, where each trains a model of its own, give each a folder: {_OWN_FOLDER}"
        )
    if store:
        raise InvalidInput(
            f"{who}: the store {store!r} would get what each of them saves under the same names; call job.init() "
            "before job.checkpoints(...), or leave out the store, here and in the spec's `checkpoint`"
        )


class Hold:
    """On a folder, for as long as this object lives: another process that is apart is refused it."""

    def __init__(self, folder: Path) -> None:
        self._fd = -1
        with contextlib.suppress(OSError):  # one that cannot be read is refused by whoever has to read it
            self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            self._take(folder)

    def _take(self, folder: Path) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno != errno.EWOULDBLOCK:
                return  # a file system without locks
            raise InvalidInput(
                f"{folder} has the checkpoints of another process of this run, which is in no process group with this "
                f"one; call job.init() before job.checkpoints(...), or give each a folder of its own: {_OWN_FOLDER}"
            ) from None

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
