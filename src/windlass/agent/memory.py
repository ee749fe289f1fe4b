"""The folder in a node's memory where ranks keep copies of their state: `memory_folder`, `forget`, `sweep`.

A copy outlives the rank that made it, its supervisor and the attempt, so that whoever comes next on this node goes on
from there. It is lost with the node, and taken back when nobody has used it for a while. Standard library only.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from contextlib import contextmanager
from typing import Any, Iterator, Mapping

from . import kernel
from .digest import sha256_of
from .files import read_json, write_json

VARIABLE = "WINDLASS_MEMORY_DIR"
KEPT_S = 1800.0  # after the last use: an attempt that follows on this node may have to wait for its place
_SHARED_MEMORY = "/dev/shm"
# Containers often have 64 MB: what does not hold a state is not worth a try. Whether this one does, its ranks find out.
_LEAST_FREE_BYTES = 256 << 20
OWNER = "owner.json"
_LOCK, _TRASH = ".lock", ".trash-"


def memory_folder(plan: Mapping[str, Any], *, memory: str = _SHARED_MEMORY) -> str | None:
    """The folder of this node of the run, which the calling process owns as long as it lives; None: the node has no
    memory to spare. The same for every attempt until the run is resumed, and ready for `WINDLASS_MEMORY_DIR`."""
    try:
        root = _root(memory)
        if root is None or _free_bytes(root) < _LEAST_FREE_BYTES:
            return None
        folder = os.path.join(root, folder_name(plan))
        with _locked(root):
            _leave_former(root, plan)
            os.makedirs(folder, mode=0o700, exist_ok=True)
            write_json(os.path.join(folder, OWNER), _owner(plan))
        return folder
    except OSError:
        return None  # whatever it is, training works without


def folder_name(plan: Mapping[str, Any]) -> str:
    """Nodes that share a machine have one each. The run's folder is part of it: a copy of a home has the same runs. So
    is where the run was last resumed: who resumes goes on from checkpoints, and may have removed the newest of them."""
    return "%s%d" % (_stem(plan), int(plan.get("first_attempt", 1)))


def _stem(plan: Mapping[str, Any]) -> str:
    place = sha256_of(str(plan["run_dir"]))[:8]
    return "%s-%d-%s-" % (plan["run_id"], int(plan["node_rank"]), place)


def _leave_former(root: str, plan: Mapping[str, Any]) -> None:
    """What is left of before the run was resumed is for nobody. The next sweep removes it."""
    for name in os.listdir(root):
        folder = os.path.join(root, name)
        if name.startswith(_stem(plan)) and name != folder_name(plan) and not _has_owner(folder):
            _out_of_sight(folder)


def forget(folder: str) -> None:
    """Give the memory back; for a run that will not go on. Processes that still read a copy keep what they have open.
    A folder that is not there is fine."""
    root = os.path.dirname(folder.rstrip("/"))
    try:
        with _locked(root):
            trash = _out_of_sight(folder)
    except OSError:
        return
    _remove(trash)


def is_unused(folder: str) -> bool:
    """Whether no rank has left anything in it."""
    try:
        return set(os.listdir(folder)) <= {OWNER}
    except OSError:
        return False


def sweep(*, memory: str = _SHARED_MEMORY, now: float | None = None) -> None:
    """Give back what belongs to nobody: folders whose owner is dead and that were not used for `KEPT_S`."""
    now = time.time() if now is None else now
    try:
        root = _root(memory)
        if root is None:
            return
        with _locked(root):
            for name in os.listdir(root):
                folder = os.path.join(root, name)
                if not name.startswith(".") and not _has_owner(folder) and now - _last_use(folder) > KEPT_S:
                    _out_of_sight(folder)
        for name in os.listdir(root):
            if name.startswith(_TRASH):  # ours, or of one who was killed before it was removed
                _remove(os.path.join(root, name))
    except OSError:
        return  # the next one who starts here will sweep


def _out_of_sight(folder: str) -> str:
    root, name = os.path.split(folder.rstrip("/"))
    trash = os.path.join(root, "%s%s-%s" % (_TRASH, name, os.urandom(4).hex()))
    os.rename(folder, trash)
    return trash


def _owner(plan: Mapping[str, Any]) -> dict[str, Any]:
    """With what ranks have to know: how much memory they may use at all, which is 0 where nobody counts it."""
    mine = kernel.stat(os.getpid())
    limit = int(plan.get("memory_limit_bytes") or 0)
    return {"pid": os.getpid(), "start": mine.start if mine else 0, "limit_bytes": limit}


def _remove(folder: str) -> None:
    import shutil  # takes long to load, and ranks wait for their supervisor

    shutil.rmtree(folder, ignore_errors=True)


def _root(memory: str) -> str | None:
    """Of this user, and no one else's: the folder above can be written by all."""
    root = os.path.join(memory, "windlass-%d" % os.getuid())
    try:
        os.mkdir(root, 0o700)
    except FileExistsError:
        pass
    except OSError:
        return None
    found = os.lstat(root)
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return root if mine else None


@contextmanager
def _locked(root: str) -> Iterator[None]:
    """A folder is not swept away while somebody moves in."""
    fd = os.open(os.path.join(root, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _has_owner(folder: str) -> bool:
    try:
        owner = read_json(os.path.join(folder, OWNER))
        return owner is not None and kernel.is_alive(int(owner["pid"]), int(owner["start"]))
    except (OSError, ValueError, KeyError):
        return False


def _last_use(folder: str) -> float:
    times = [os.lstat(folder).st_mtime]
    for name in os.listdir(folder):
        try:
            times.append(os.lstat(os.path.join(folder, name)).st_mtime)
        except OSError:
            continue  # it has just been replaced, so the folder's own time is new
    return max(times)


def _free_bytes(folder: str) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
