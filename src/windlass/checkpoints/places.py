"""Looking at a checkpoint where it lies, and removing it there: a folder of this machine, or an object store."""

from __future__ import annotations

import os
from pathlib import Path

from windlass.blobs.bucket import Bucket, open_bucket
from windlass.blobs.stored import check_stored, remove_stored
from windlass.checkpoints.removal import remove_folder
from windlass.core.errors import InvalidInput, Unavailable
from windlass.core.integrity import Finding, Integrity, check_folder

_BRIEF_S = 5.0  # for a look at names and sizes, which people wait for


def check_place(
    location: str, *, run_id: str, step: int, endpoint: str | None = None, contents: bool = True
) -> Integrity:
    """`endpoint`: of the run's S3 server, if it has one of its own. Credentials are this process's."""
    if "://" not in location:
        return check_folder(location, run_id=run_id, step=step, contents=contents)
    try:
        bucket, name = _open(location, endpoint, brief=not contents)
    except InvalidInput as error:
        return Integrity(finding=Finding.UNSEEN, problems=(error.message,))
    return check_stored(bucket, name, run_id=run_id, step=step, contents=contents)


def remove_place(location: str, *, run_id: str, step: int, endpoint: str | None = None) -> str | None:
    """None once it is gone, or why it stays. Safe to repeat."""
    if "://" in location:
        return _remove_stored(location, run_id=run_id, step=step, endpoint=endpoint)
    place = Path(location)
    if not place.is_absolute() or not place.parent.is_dir():
        return f"{location} cannot be seen from the server's machine, {os.uname().nodename}"
    try:
        obstacle = remove_folder(place, run_id=run_id, step=step)
    except OSError as error:
        return f"{location} cannot be removed: {error.strerror}"
    return obstacle and f"nothing was removed: {obstacle}"


def _remove_stored(location: str, *, run_id: str, step: int, endpoint: str | None) -> str | None:
    try:
        bucket, name = _open(location, endpoint)
        seen = check_stored(bucket, name, run_id=run_id, step=step, contents=False)
        if seen.finding is Finding.UNSEEN:
            return seen.problems[0]
        if seen.manifest is not None and (seen.manifest.run_id, seen.manifest.step) != (run_id, step):
            return f"nothing was removed: {seen.problems[0]}"
        # Without a manifest it is what an earlier removal left, or somebody's unfinished upload to that very name.
        remove_stored(bucket, name)
    except (InvalidInput, Unavailable) as error:
        return error.message
    return None


def _open(location: str, endpoint: str | None, *, brief: bool = False) -> tuple[Bucket, str]:
    address, _, name = location.rpartition("/")
    if brief:
        return open_bucket(address, endpoint=endpoint, environ=os.environ, timeout_s=_BRIEF_S, retries=0), name
    return open_bucket(address, endpoint=endpoint, environ=os.environ), name
