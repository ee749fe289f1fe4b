"""Laying out a code snapshot as a run's working folder: once for all attempts, copied, checked."""

from __future__ import annotations

import fcntl
import os
from typing import Any, Mapping

from .command import CannotStart
from .files import read_json, write_json

MARKER = "code.json"
_LOCK = "code.lock"


def lay_out(*, run_dir: str, workdir: str, manifest: str, blobs: str) -> None:
    """Fill `workdir` from the manifest unless that was done before. Raises CannotStart if it cannot be done.

    The marker lies beside the working folder, where the script's own files cannot meet it. Interrupted half-way, it
    is done again from the start; files that an earlier attempt wrote stay.
    """
    with open(os.path.join(run_dir, _LOCK), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the nodes of an attempt may share the folder
        marker = os.path.join(run_dir, MARKER)
        if os.path.exists(marker):
            return
        try:
            content = read_json(manifest)
        except (OSError, ValueError) as error:
            raise CannotStart("the code snapshot cannot be read: %s" % error) from error
        if content is None:
            raise CannotStart("the code snapshot is missing: no file %s" % manifest)
        os.makedirs(workdir, exist_ok=True)
        try:
            for entry in content["files"]:
                _place(entry, os.path.realpath(workdir), blobs)
        except OSError as error:
            raise CannotStart("the code snapshot cannot be laid out: %s" % error) from error
        write_json(marker, {"manifest": os.path.basename(manifest)})


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
