"""Code snapshots: a manifest of paths and hashes, itself a blob; its hash names the snapshot."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from windlass.blobs.contract import Blobs
from windlass.core.errors import InvalidInput

_DIGEST = re.compile(r"[0-9a-f]{64}")


def manifest_bytes(files: Sequence[Mapping[str, Any]]) -> bytes:
    """The same files always give the same bytes, and so the same digest."""
    ordered = sorted((dict(file) for file in files), key=lambda file: str(file["path"]))
    return json.dumps({"version": 1, "files": ordered}, sort_keys=True, separators=(",", ":")).encode()


def store_manifest(blobs: Blobs, files: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]]:
    """(digest of the snapshot, blobs it needs that are not here yet)."""
    _check(files)
    digest = blobs.put(manifest_bytes(files))
    return digest, blobs.missing(_contents(files))


def missing_blobs(blobs: Blobs, digest: str) -> list[str]:
    return blobs.missing(snapshot_contents(blobs, digest))


def snapshot_contents(blobs: Blobs, digest: str) -> list[str]:
    """The blobs that the snapshot's files need."""
    return list(_contents(load_files(blobs, digest)))


def load_files(blobs: Blobs, digest: str) -> list[dict[str, Any]]:
    """The files of a snapshot. Checked again: a manifest can also be sent as a blob, past `store_manifest`."""
    try:
        files = json.loads(blobs.get(digest))["files"]
        if not all(_is_entry(file) for file in files):
            raise TypeError("an entry is not one of a file or a link")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidInput(f"blob {digest} is not a code snapshot") from error
    _check(files)
    return list(files)


def _contents(files: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    return (file["sha256"] for file in files if file.get("sha256"))


def _is_entry(file: Mapping[str, Any]) -> bool:
    return (
        isinstance(file["path"], str)
        and isinstance(file["mode"], int)
        and isinstance(file["size"], int)
        and (file.get("sha256") is None or bool(_DIGEST.fullmatch(file["sha256"])))
        and (file.get("link") is None or isinstance(file["link"], str))
    )


def _check(files: Sequence[Mapping[str, Any]]) -> None:
    seen: dict[PurePosixPath, str] = {}
    for file in files:
        path = PurePosixPath(file["path"])
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise InvalidInput(f"'{file['path']}' is not a path inside a snapshot")
        if (file.get("sha256") is None) == (file.get("link") is None):
            raise InvalidInput(f"'{file['path']}' must have either a `sha256` or a `link`")
        if path in seen:
            raise InvalidInput(f"'{file['path']}' is in the snapshot twice")
        seen[path] = file["path"]
    for path, written in seen.items():
        if inside := next((parent for parent in path.parents if parent in seen), None):
            raise InvalidInput(f"'{written}' cannot lie inside '{inside}', which is a file or a link")
