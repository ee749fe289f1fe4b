"""Routes of code snapshots: announce the files, send the missing ones, submit."""

from __future__ import annotations

import re
import tarfile
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool

from windlass.api.context import Context
from windlass.blobs.bulk import put_many
from windlass.blobs.contract import Blobs
from windlass.blobs.snapshots import store_manifest
from windlass.core.errors import InvalidInput, TooLarge
from windlass.wire.cluster import SnapshotReceipt, SnapshotRequest

router = APIRouter(prefix="/api", tags=["code"])

_MOST_BYTES = 4 << 30
_IN_MEMORY_BYTES = 8 << 20
_DIGEST = re.compile(r"^[0-9a-f]{64}$")
_TAR_BODY = {"requestBody": {"content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}}}


@router.post("/snapshots")
def announce(request: SnapshotRequest, services: Context) -> SnapshotReceipt:
    """Tell which files a snapshot has; learn which of them the server still needs."""
    files = [file.model_dump(exclude_none=True) for file in request.files]
    digest, missing = store_manifest(services.blobs, files)
    return SnapshotReceipt(digest=digest, missing=missing)


@router.post("/blobs", status_code=204, openapi_extra=_TAR_BODY)
async def upload(request: Request, services: Context) -> None:
    """An uncompressed tar whose members are named by their sha256."""
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as body:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > _MOST_BYTES:
                raise TooLarge(f"the upload is over {_MOST_BYTES} bytes", hint="send the blobs in several parts")
            body.write(chunk)
        body.seek(0)
        await run_in_threadpool(_unpack, services.blobs, body)  # type: ignore[arg-type]  # it is a binary file


def _unpack(blobs: Blobs, body: BinaryIO) -> None:
    try:
        with tarfile.open(fileobj=body, mode="r:") as archive:
            put_many(blobs, _members(archive))
    except tarfile.TarError as error:
        raise InvalidInput(f"the body is not a tar archive: {error}") from error


def _members(archive: tarfile.TarFile) -> Iterator[tuple[str, int, BinaryIO]]:
    for member in archive:
        if not member.isfile() or not _DIGEST.match(member.name):
            raise InvalidInput(f"{member.name[:80]!r} is not a file named by its sha256")
        content = archive.extractfile(member)
        assert content is not None  # it is a regular file
        yield member.name, member.size, content  # type: ignore[misc]
