"""A checkpoint in a bucket: what its objects are called, which there are, whether they are whole, and how they go.

    step-0000000100-1f2e3d4c/__0_0.distcp.00000, .00001 …   a file in pieces, which `cat` joins
    step-0000000100-1f2e3d4c/.metadata                      a small file
    step-0000000100-1f2e3d4c/manifest.json                  written last: without it there is no checkpoint
    step-0000000100-1f2e3d4c/damaged.json                   the manifest of one that was found to be damaged

Pieces rather than the store's own uploads in parts, since those cannot be gone on with by another process on every
store. A folder's name is made from what it is to hold, so that a piece of the right size is the right piece.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from windlass.blobs.bucket import Bucket, Found
from windlass.core.errors import NotFound, Unavailable
from windlass.core.integrity import Finding, Integrity
from windlass.core.manifest import (
    MANIFEST,
    NEWER_HINT,
    InvalidManifest,
    Manifest,
    NewerManifest,
    PartFile,
    digest_of,
    folder_name,
    parse_manifest,
)

PIECE_BYTES = 16 << 20
DAMAGED = "damaged.json"
_NAME = re.compile(r"^step-(\d{10,})-[0-9a-f]+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    name: str
    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    key: str  # inside the checkpoint's folder
    start: int  # in the file
    end: int


def stored_name(manifest: Manifest) -> str:
    return f"{folder_name(manifest.step)}-{digest_of(manifest)[:12]}"


def step_of(name: str) -> int | None:
    """None: not the name of a checkpoint."""
    match = _NAME.match(name)
    return int(match[1]) if match else None


def pieces_of(file: PartFile) -> list[Piece]:
    """As they are written. Who reads goes by what there is: `pieces_in`."""
    if file.size_bytes <= PIECE_BYTES:
        return [Piece(key=file.name, start=0, end=file.size_bytes)]
    starts = range(0, file.size_bytes, PIECE_BYTES)
    return [
        Piece(key=f"{file.name}.{number:05d}", start=start, end=min(start + PIECE_BYTES, file.size_bytes))
        for number, start in enumerate(starts)
    ]


def pieces_in(listing: Mapping[str, Found], file: PartFile) -> list[Piece] | None:
    """The pieces of a file, in order; None if they do not make up all of it."""
    if file.name in listing:
        keys = [file.name]
    else:
        pattern = re.compile(re.escape(file.name) + r"\.\d{5,}")
        keys = sorted(filter(pattern.fullmatch, listing), key=lambda key: int(key.rpartition(".")[2]))
    pieces, at = [], 0
    for key in keys:
        pieces.append(Piece(key=key, start=at, end=at + listing[key].size_bytes))
        at = pieces[-1].end
    return pieces if keys and at == file.size_bytes else None


def list_stored(bucket: Bucket, known: Mapping[str, Manifest] | None = None) -> list[Stored]:
    """Newest first; `known`: manifests that were read before. Raises Unavailable."""
    found = []
    for name in bucket.folders():
        if step_of(name) is None:
            continue
        try:
            manifest = (known or {}).get(name) or _read(bucket, name)
        except (NotFound, InvalidManifest):
            continue  # not finished, or set aside; or nothing that we can make sense of
        found.append(Stored(name=name, manifest=manifest))
    return sorted(found, key=lambda one: (one.manifest.step, one.manifest.created_at, one.name), reverse=True)


def refuse_newer(bucket: Bucket, *, than: int) -> None:
    """Raises NewerManifest if a newer Windlass has left one that is newer than that step: who went on from an older one
    would lose what was done since, and not know it. Raises Unavailable."""
    for name in bucket.folders():
        if (step_of(name) or 0) > than and is_by_newer(bucket, name):
            raise NewerManifest(f"{bucket.at(name)} was saved by a newer version of Windlass", hint=NEWER_HINT)


def is_by_newer(bucket: Bucket, name: str) -> bool:
    """Whether a newer Windlass has saved it, so that it is not ours to judge. Raises Unavailable."""
    try:
        _read(bucket, name)
    except NewerManifest:
        return True
    except (NotFound, InvalidManifest):
        return False
    return False


def _read(bucket: Bucket, name: str) -> Manifest:
    return parse_manifest(bucket.get(f"{name}/{MANIFEST}"), name=name)


def check_stored(bucket: Bucket, name: str, *, run_id: str | None, step: int, contents: bool = True) -> Integrity:
    """As `check_folder`. Without `contents` sizes are compared, and hashes are taken on trust."""
    try:
        manifest = _read(bucket, name)
        listing = bucket.list(name)
    except NotFound:
        return Integrity(finding=Finding.MISSING, problems=(f"{bucket.at(name)} is not there any more",))
    except (Unavailable, NewerManifest) as error:
        return Integrity(finding=Finding.UNSEEN, problems=(error.message,))
    except InvalidManifest as error:
        return Integrity(finding=Finding.CORRUPT, problems=(error.message,))
    if (manifest.run_id, manifest.step) != (run_id, step):
        other = f"step {manifest.step} of {manifest.run_id or 'no run'}"
        return Integrity(finding=Finding.MISSING, problems=(f"{bucket.at(name)} holds {other}",), manifest=manifest)
    try:
        problems = tuple(_problems(bucket, name, manifest, listing, contents=contents))
    except Unavailable as error:
        return Integrity(finding=Finding.UNSEEN, problems=(error.message,), manifest=manifest)
    return Integrity(finding=Finding.CORRUPT if problems else Finding.GOOD, problems=problems, manifest=manifest)


def _problems(
    bucket: Bucket, name: str, manifest: Manifest, listing: Mapping[str, Found], *, contents: bool
) -> Iterator[str]:
    for file in manifest.files:
        if pieces_in(listing, file) is None:
            yield f"{file.name} is not whole"
        elif contents:
            digest = hashlib.sha256()
            try:
                for data in read_stored(bucket, name, file, listing):
                    digest.update(data)
            except NotFound:
                yield f"{file.name} is not whole"
                continue
            if digest.hexdigest() != file.sha256:
                yield f"{file.name} has changed since it was saved: its sha256 is another"


def read_stored(
    bucket: Bucket, name: str, file: PartFile, listing: Mapping[str, Found] | None = None
) -> Iterator[bytes]:
    """A file's bytes, piece by piece. Raises NotFound if it is not whole."""
    pieces = pieces_in(bucket.list(name) if listing is None else listing, file)
    if pieces is None:
        raise NotFound(f"{bucket.at(name)}: {file.name} is not whole")
    for piece in pieces:
        yield bucket.get(f"{name}/{piece.key}")


def remove_stored(bucket: Bucket, name: str) -> None:
    """Nobody takes it for a checkpoint from its first step on; broken off anywhere and begun again, it goes on."""
    bucket.delete([f"{name}/{MANIFEST}"])
    bucket.delete(f"{name}/{key}" for key in sorted(bucket.list(name)))


def lay_aside(bucket: Bucket, name: str) -> None:
    """Out of sight, to be looked at until it is removed."""
    try:
        bucket.put(f"{name}/{DAMAGED}", bucket.get(f"{name}/{MANIFEST}"))
    except NotFound:
        return
    bucket.delete([f"{name}/{MANIFEST}"])
