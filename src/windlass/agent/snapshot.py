"""Laying out a code snapshot as a run's working folder: once for all attempts, copied, checked.

Nothing is synced: ranks would wait for the disk, and for whatever else is on its way there. Lost power may then leave
files shorter than they were, so that a later attempt, on a machine that was started anew, looks at their sizes.
"""

from __future__ import annotations

import fcntl
import os
import stat
from typing import Any, Mapping, Sequence

from . import kernel
from .command import CannotStart
from .files import read_if_whole, read_json, write_json

MARKER = "code.json"
_LOCK = "code.lock"
_DRAFT = "code.part"


def lay_out(*, run_dir: str, workdir: str, manifest: str, blobs: str, attempt_id: str) -> None:
    """Fill `workdir` from the manifest unless that was done before. Raises CannotStart if it cannot be done.

    The marker lies beside the working folder, where the script's own files cannot meet it. Interrupted half-way, it
    is done again from the start; files that an earlier attempt wrote stay.
    """
    with open(os.path.join(run_dir, _LOCK), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the nodes of an attempt may share the folder
        marker = os.path.join(run_dir, MARKER)
        is_there = os.path.exists(marker)
        if is_there and _is_as_laid(read_if_whole(marker), attempt_id):
            return
        entries = _load_entries(manifest)
        os.makedirs(workdir, exist_ok=True)
        root = os.path.realpath(workdir)
        try:
            if is_there:
                _restore_lost(entries, root, blobs, draft=os.path.join(run_dir, _DRAFT), marker=marker)
                return  # the marker keeps its time, which tells what the run has changed since
            for entry in entries:
                _place(entry, root, blobs)
        except OSError as error:
            raise CannotStart("the code snapshot cannot be laid out: %s" % error) from error
        laid = {"manifest": os.path.basename(manifest), "attempt": attempt_id, "boot": kernel.boot_id()}
        write_json(marker, laid)


def _is_as_laid(laid: Mapping[str, Any] | None, attempt_id: str) -> bool:
    """Whether no power can have been lost since, by what the marker says: another node of this attempt has done it, or
    it was done since this machine was started."""
    return laid is not None and (laid.get("attempt") == attempt_id or laid.get("boot") == kernel.boot_id())


def _load_entries(manifest: str) -> Sequence[Mapping[str, Any]]:
    try:
        content = read_json(manifest)
    except (OSError, ValueError) as error:
        raise CannotStart("the code snapshot cannot be read: %s" % error) from error
    if content is None:
        raise CannotStart("the code snapshot is missing: no file %s" % manifest)
    entries: Sequence[Mapping[str, Any]] = content["files"]
    return entries


def _restore_lost(entries: Sequence[Mapping[str, Any]], root: str, blobs: str, *, draft: str, marker: str) -> None:
    laid_at_ns = os.stat(marker).st_ctime_ns
    for entry in entries:
        target = os.path.join(root, entry["path"])
        if entry.get("link") is None and _is_lost(target, root, int(entry["size"]), laid_at_ns):
            _place_file(entry, draft, blobs)
            _sync(draft)  # nobody would take it for lost a second time
            os.replace(draft, target)


def _is_lost(target: str, root: str, size: int, laid_at_ns: int) -> bool:
    """Whether it is shorter than it was laid out, and nobody has touched it since: by the time that programs cannot
    set. What the run itself has changed or removed is as it wants it."""
    try:
        found = os.lstat(target)
    except OSError:
        return False
    is_short = stat.S_ISREG(found.st_mode) and found.st_size < size
    return is_short and found.st_ctime_ns <= laid_at_ns and _inside(os.path.realpath(target), root)


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _place(entry: Mapping[str, Any], root: str, blobs: str) -> None:
    path = entry["path"]
    target = os.path.normpath(os.path.join(root, path))
    # Compared after resolving links in the folders above: an earlier entry may be a link that leads out.
    parent = os.path.realpath(os.path.dirname(target))
    if os.path.isabs(path) or ".." in path.split("/") or not _inside(parent, root) or target == root:
        raise CannotStart("the code snapshot names the path '%s', which leads out of the working folder" % path)
    os.makedirs(parent, exist_ok=True)
    if os.path.islink(target) or os.path.isfile(target):
        os.unlink(target)
    if entry.get("link") is not None:
        _place_link(entry, target, root)
    else:
        _place_file(entry, target, blobs)


def _place_link(entry: Mapping[str, Any], target: str, root: str) -> None:
    link = entry["link"]
    if os.path.isabs(link) or not _inside(os.path.realpath(os.path.join(os.path.dirname(target), link)), root):
        raise CannotStart("the code snapshot links '%s' to '%s', out of the working folder" % (entry["path"], link))
    os.symlink(link, target)


def _place_file(entry: Mapping[str, Any], target: str, blobs: str) -> None:
    digest = str(entry["sha256"])
    blob = os.path.join(blobs, digest[:2], digest)
    import shutil  # many runs have no code of their own, and wait for nothing else

    try:
        shutil.copyfile(blob, target)  # never a hard link: scripts may write to their files
    except FileNotFoundError as error:
        raise CannotStart("the code snapshot lacks the content of '%s' (%s)" % (entry["path"], digest)) from error
    size = os.path.getsize(target)
    if size != entry["size"]:
        raise CannotStart("'%s' in the code snapshot has %d bytes, not %d" % (entry["path"], size, entry["size"]))
    os.chmod(target, int(entry["mode"]) & 0o777)


def _inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root + os.sep)
