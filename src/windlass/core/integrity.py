"""Whether a checkpoint's folder holds what its manifest says: sizes and hashes of every file. Changes nothing.

Of the standard library alone: the server uses it, and the command line where the server cannot see the folder.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath

from windlass.core.manifest import MANIFEST, InvalidManifest, Manifest, NewerManifest, PartFile, parse_manifest

_MOST_MANIFEST_BYTES = 256 << 20
_READ_BYTES = 4 << 20
_THREADS = 4


class Finding(StrEnum):
    GOOD = "good"
    CORRUPT = "corrupt"
    MISSING = "missing"  # the folder it was in is here, and it is not
    UNSEEN = "unseen"  # nothing of it can be seen from this machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Integrity:
    finding: Finding
    problems: tuple[str, ...] = ()
    manifest: Manifest | None = None


def check_folder(location: str, *, run_id: str | None, step: int, contents: bool = True) -> Integrity:
    """Look at a checkpoint of this run and step. Without `contents` the hashes are taken on trust."""
    folder = Path(location)
    if "://" in location or not folder.is_absolute():
        return Integrity(finding=Finding.UNSEEN, problems=(f"{location} is not a folder",))
    try:
        with (folder / MANIFEST).open("rb") as file:
            manifest = parse_manifest(file.read(_MOST_MANIFEST_BYTES), name=folder.name)
    except (FileNotFoundError, NotADirectoryError):
        return _without_manifest(folder)
    except NewerManifest as error:
        return Integrity(finding=Finding.UNSEEN, problems=(error.message,))
    except InvalidManifest as error:
        return Integrity(finding=Finding.CORRUPT, problems=(error.message,))
    except OSError as error:
        return Integrity(finding=Finding.UNSEEN, problems=(f"{error.filename}: {error.strerror}",))
    if (manifest.run_id, manifest.step) != (run_id, step):
        other = f"step {manifest.step} of {manifest.run_id or 'no run'}"
        return Integrity(finding=Finding.MISSING, problems=(f"{folder} now holds {other}",))
    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(lambda part: problem_of(folder, part, contents=contents), manifest.files)
        problems = tuple(problem for problem in found if problem is not None)
    return Integrity(finding=Finding.CORRUPT if problems else Finding.GOOD, problems=problems, manifest=manifest)


def _without_manifest(folder: Path) -> Integrity:
    if folder.is_dir():
        return Integrity(finding=Finding.CORRUPT, problems=(f"{folder} has no {MANIFEST}",))
    if folder.parent.is_dir():
        return Integrity(finding=Finding.MISSING, problems=(f"{folder} is not there any more",))
    return Integrity(finding=Finding.UNSEEN, problems=(f"{folder} cannot be seen from {os.uname().nodename}",))


def problem_of(folder: Path, part: PartFile, *, contents: bool = True) -> str | None:
    """What is wrong with one file, in words."""
    try:
        path = path_of(folder, part)
        size = path.stat().st_size
        if size != part.size_bytes:
            return f"{part.name} has {size} bytes, not {part.size_bytes}"
        if contents and _sha256(path) != part.sha256:
            return f"{part.name} has changed since it was saved: its sha256 is another"
    except FileNotFoundError:
        return f"{part.name} is missing"
    except OSError as error:
        return f"{part.name} cannot be read: {error.strerror}"
    except InvalidManifest as error:
        return error.message
    return None


def path_of(folder: Path, part: PartFile) -> Path:
    """Where a file of a checkpoint lies. Raises InvalidManifest for a name that leads out of the folder."""
    name = PurePosixPath(part.name)
    path = folder / name
    plain = name.parts and not name.is_absolute() and ".." not in name.parts
    if not plain or not path.parent.resolve().is_relative_to(folder.resolve()):
        raise InvalidManifest(f"the manifest names {part.name!r}, which is no file of its folder")
    return path


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while data := file.read(_READ_BYTES):
            digest.update(data)
    return digest.hexdigest()
