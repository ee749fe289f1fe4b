"""What nodes download: the agent itself as a zip, and code snapshots as tars of blobs. Both the same every time."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
import json
import logging
import marshal
import tarfile
import zipfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import windlass.agent
from windlass.blobs.bulk import get_many
from windlass.blobs.contract import Blobs
from windlass.core.errors import NotFound

log = logging.getLogger(__name__)

_PIECE_BYTES = 1 << 20
_OLDEST_ZIP_DATE = (1980, 1, 1, 0, 0, 0)
_UNCHECKED_HASH = (1).to_bytes(4, "little")  # PEP 552: bytecode that is not compared with its source


class AgentZip(NamedTuple):
    data: bytes
    etag: str


@functools.cache
def agent_zip() -> AgentZip:
    """The agent package as it is in this process's installation, as a folder `agent` to import from. It comes compiled
    too: nodes with the server's version of Python need not do that, which is a third of their start; and what they read
    is not packed, since unpacking it takes longer than its way."""
    buffer, digest = io.BytesIO(), hashlib.sha256(importlib.util.MAGIC_NUMBER)
    folder = Path(windlass.agent.__file__).parent
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.glob("*.py")):
            source, name = path.read_bytes(), f"agent/{path.name}"
            digest.update(source)
            members = (
                (name, source, zipfile.ZIP_DEFLATED),
                (f"{name}c", _compiled(source, name), zipfile.ZIP_STORED),
            )
            for member, data, packing in members:
                entry = zipfile.ZipInfo(member, date_time=_OLDEST_ZIP_DATE)
                entry.compress_type = packing
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, data)
    return AgentZip(buffer.getvalue(), f'"{digest.hexdigest()[:32]}"')


def _compiled(source: bytes, name: str) -> bytes:
    code = compile(source, name, "exec", dont_inherit=True)
    return importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + importlib.util.source_hash(source) + marshal.dumps(code)


def stream_code(blobs: Blobs, digest: str) -> Iterator[bytes]:
    """The manifest is read before the first piece, so that a snapshot that is not there is told as an error."""
    manifest = blobs.get(digest)
    files = json.loads(manifest)["files"]
    contents = dict.fromkeys(file["sha256"] for file in files if file.get("sha256"))
    return _pieces(blobs, digest, manifest, list(contents))


def _pieces(blobs: Blobs, digest: str, manifest: bytes, contents: list[str]) -> Iterator[bytes]:
    """Small files go out together: a snapshot of a thousand files is a few writes. A file that is gone ends it early
    and in good order: an answer that broke off would be asked for again and again."""
    waiting = bytearray()
    for name, data in chain([(digest, manifest)], _present(blobs, digest, contents)):
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        waiting += entry.tobuf(tarfile.PAX_FORMAT)
        waiting += data
        waiting += b"\0" * (-len(data) % tarfile.BLOCKSIZE)
        if len(waiting) >= _PIECE_BYTES:
            yield bytes(waiting)
            waiting.clear()
    yield bytes(waiting) + b"\0" * (2 * tarfile.BLOCKSIZE)


def _present(blobs: Blobs, digest: str, contents: list[str]) -> Iterator[tuple[str, bytes]]:
    """Up to the first that is not there. Raises Unavailable while the store is away."""
    try:
        yield from zip(contents, get_many(blobs, contents), strict=True)
    except NotFound as error:
        log.error("the code snapshot %s is incomplete: %s", digest, error)
