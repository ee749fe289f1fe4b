"""Getting a code snapshot from the server: one request for all of it, or none if it is here already."""

from __future__ import annotations

import json
import os
from typing import Any, BinaryIO

from .command import CannotStart
from .courier import Courier, Unreachable
from .http1 import BadAnswer

_PIECE_BYTES = 1 << 20


def fetch_code(courier: Courier, digest: str, blobs: str) -> None:
    """Have the manifest and every blob of it in `blobs`, as `<first two digits>/<sha256>`. Raises Unreachable to be
    tried again, Refused if the server will not give it, CannotStart if what it gives is not what was asked for."""
    if _is_complete(digest, blobs):
        return
    import tarfile  # long to load, and often not needed

    response = courier.open("code")
    try:
        stream: Any = response  # all that is asked of it is to be read
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                content = archive.extractfile(member)
                if content is not None:
                    _store(member.name, content, blobs)  # type: ignore[arg-type]  # a binary file, by another name
        response.read()
    except CannotStart:
        courier.close()  # the rest of the answer would be taken for the next one
        raise
    except (tarfile.TarError, EOFError, BadAnswer, OSError) as error:
        courier.close()
        raise Unreachable("the code broke off: %s" % error) from error
    if not _is_complete(digest, blobs):
        raise CannotStart(_describe_gap(digest, blobs))


def blob_path(blobs: str, digest: str) -> str:
    return os.path.join(blobs, digest[:2], digest)


def _is_complete(digest: str, blobs: str) -> bool:
    try:
        with open(blob_path(blobs, digest), "rb") as file:
            files = json.loads(file.read())["files"]
    except (FileNotFoundError, ValueError):  # not here, or cut short by a crash of the machine
        return False
    contents = {file["sha256"]: file["size"] for file in files if file.get("sha256")}
    return all(_has(content, size, blobs) for content, size in contents.items())


def _describe_gap(digest: str, blobs: str) -> str:
    """A server leaves out what it has not got any more: asking again would bring the same."""
    complaint = "the server's code snapshot %s is incomplete" % digest
    try:
        with open(blob_path(blobs, digest), "rb") as file:
            files = json.loads(file.read())["files"]
    except (FileNotFoundError, ValueError):
        return complaint
    gaps = [file["path"] for file in files if file.get("sha256") and not _has(file["sha256"], file["size"], blobs)]
    return "%s: it lacks the content of '%s'" % (complaint, gaps[0]) if gaps else complaint


def _has(digest: str, size: int, blobs: str) -> bool:
    """By its size too: what is stored is not synced, and lost power cuts files short."""
    try:
        return os.stat(blob_path(blobs, digest)).st_size == size
    except FileNotFoundError:
        return False


def _store(digest: str, content: BinaryIO, blobs: str) -> None:
    """Whole or not at all while the machine runs: attempts on one node may share the folder."""
    os.makedirs(os.path.join(blobs, digest[:2]), exist_ok=True)
    import hashlib  # not before there is code to fetch, like all that is loaded here
    import tempfile

    handle, draft = tempfile.mkstemp(dir=blobs, prefix=".incoming-")
    try:
        hasher = hashlib.sha256()
        with os.fdopen(handle, "wb") as file:
            while True:
                piece = content.read(_PIECE_BYTES)
                if not piece:
                    break
                hasher.update(piece)
                file.write(piece)
        if hasher.hexdigest() != digest:
            raise CannotStart("a file of the code snapshot has the sha256 %s, not %s" % (hasher.hexdigest(), digest))
        os.replace(draft, blob_path(blobs, digest))
    except BaseException:
        os.unlink(draft)
        raise
