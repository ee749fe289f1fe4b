"""Code snapshots: a manifest of paths and hashes, itself a blob; its hash names the snapshot."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from windlass.blobs.local import LocalBlobs
from windlass.core.errors import InvalidInput


def manifest_bytes(files: Sequence[Mapping[str, Any]]) -> bytes:
    """The same files always give the same bytes, and so the same digest."""
    ordered = sorted((dict(file) for file in files), key=lambda file: str(file["path"]))
    return json.dumps({"version": 1, "files": ordered}, sort_keys=True, separators=(",", ":")).encode()


def store_manifest(blobs: LocalBlobs, files: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]]:
    """(digest of the snapshot, blobs it needs that are not here yet)."""
    seen: set[str] = set()
    for file in files:
        _check(file, seen)
    digest = blobs.put(manifest_bytes(files))
    return digest, blobs.missing(file["sha256"] for file in files if file.get("sha256"))


def missing_blobs(blobs: LocalBlobs, digest: str) -> list[str]:
    return blobs.missing(blob_digests(blobs, digest))


def blob_digests(blobs: LocalBlobs, digest: str) -> Iterator[str]:
    manifest = json.loads(blobs.get(digest))
    if not isinstance(manifest, dict) or "files" not in manifest:
        raise InvalidInput(f"blob {digest} is not a code snapshot")
    return (file["sha256"] for file in manifest["files"] if file.get("sha256"))


def _check(file: Mapping[str, Any], seen: set[str]) -> None:
    path = PurePosixPath(file["path"])
    if path.is_absolute() or ".." in path.parts or str(path) in ("", "."):
        raise InvalidInput(f"'{file['path']}' is not a path inside a snapshot")
    if (file.get("sha256") is None) == (file.get("link") is None):
        raise InvalidInput(f"'{file['path']}' must have either a `sha256` or a `link`")
    if str(path) in seen:
        raise InvalidInput(f"'{file['path']}' is in the snapshot twice")
    seen.add(str(path))
