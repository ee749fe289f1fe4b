"""What nodes download: the agent itself as a zip, and code snapshots as tars of blobs. Both the same every time."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import windlass.agent
from windlass.blobs.bulk import get_many
from windlass.blobs.contract import Blobs

_PIECE_BYTES = 1 << 20
_OLDEST_ZIP_DATE = (1980, 1, 1, 0, 0, 0)


class AgentZip(NamedTuple):
    data: bytes
    etag: str


@functools.cache
def agent_zip() -> AgentZip:
    """The agent package as it is in this process's installation, as a folder `agent`."""
    buffer = io.BytesIO()
    folder = Path(windlass.agent.__file__).parent
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.glob("*.py")):
            entry = zipfile.ZipInfo(f"agent/{path.name}", date_time=_OLDEST_ZIP_DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, path.read_bytes())
    data = buffer.getvalue()
    return AgentZip(data, f'"{hashlib.sha256(data).hexdigest()[:32]}"')


def stream_code(blobs: Blobs, digest: str) -> Iterator[bytes]:
    """The manifest is read before the first piece, so that a snapshot that is not there is told as an error."""
    manifest = blobs.get(digest)
    files = json.loads(manifest)["files"]
    contents = dict.fromkeys(file["sha256"] for file in files if file.get("sha256"))
    return _pieces(blobs, digest, manifest, list(contents))


def _pieces(blobs: Blobs, digest: str, manifest: bytes, contents: list[str]) -> Iterator[bytes]:
    """Small files go out together: a snapshot of a thousand files is a few writes."""
    waiting = bytearray()
    for name, data in chain([(digest, manifest)], zip(contents, get_many(blobs, contents), strict=True)):
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        waiting += entry.tobuf(tarfile.PAX_FORMAT)
        waiting += data
        waiting += b"\0" * (-len(data) % tarfile.BLOCKSIZE)
        if len(waiting) >= _PIECE_BYTES:
            yield bytes(waiting)
            waiting.clear()
    yield bytes(waiting) + b"\0" * (2 * tarfile.BLOCKSIZE)
