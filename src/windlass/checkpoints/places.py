"""Looking at a checkpoint where it lies, removing and exporting it: a folder of this machine, or an object store."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from windlass.blobs.bucket import Bucket, open_bucket
from windlass.blobs.stored import check_stored, read_stored, remove_stored
from windlass.checkpoints.export import Exported, export_weights
from windlass.checkpoints.removal import remove_folder
from windlass.core.errors import Conflict, InvalidInput, Unavailable
from windlass.core.integrity import Finding, Integrity, check_folder, path_of
from windlass.core.manifest import Manifest

_BRIEF_S = 5.0  # for a look at names and sizes, which people wait for


def check_place(
    location: str, *, run_id: str | None, step: int, endpoint: str | None = None, contents: bool = True
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


def export_place(
    location: str, target: Path, *, run_id: str | None, step: int, endpoint: str | None = None
) -> Exported | None:
    """The weights of the checkpoint there as one file; None if nothing can be seen of it from here. From a store comes
    only what holds weights. Raises Conflict for a damaged one, NotFound for one without weights, OSError."""
    seen = check_place(location, run_id=run_id, step=step, endpoint=endpoint, contents=False)
    if seen.finding is Finding.UNSEEN:
        return None
    if seen.manifest is None or seen.finding is not Finding.GOOD:
        raise Conflict(
            f"the checkpoint of step {step} is {seen.finding}: {seen.problems[0]}", hint="export another one"
        )
    if "://" not in location:
        return export_weights(Path(location), seen.manifest, target)
    return _export_stored(location, seen.manifest, target, endpoint)


def _export_stored(location: str, manifest: Manifest, target: Path, endpoint: str | None) -> Exported:
    bucket, name = _open(location, endpoint)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".export-") as folder:

        def bring(names: list[str]) -> None:
            for file in manifest.files:
                if file.name in names:
                    path = path_of(Path(folder), file)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with path.open("wb") as written:
                        written.writelines(read_stored(bucket, name, file))

        return export_weights(Path(folder), manifest, target, bring=bring)
