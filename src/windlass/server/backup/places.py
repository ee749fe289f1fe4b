"""Where backups lie: in a file, or as an object in a bucket (`s3://BUCKET/KEY`, `gs://…`, `az://…`)."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from windlass.blobs.opening import open_store
from windlass.blobs.troubles import translated
from windlass.core.errors import Conflict, InvalidInput
from windlass.wire.config import BlobsSection

_SCHEMES = ("s3", "gs", "az")


@contextlib.contextmanager
def writing(place: str, blobs: BlobsSection, environ: Mapping[str, str], *, force: bool) -> Iterator[IO[bytes]]:
    """A file to write; it appears at `place`, whole, when the block ends without an error."""
    if (key := _key(place)) is not None:
        import obstore

        store = open_store(_bucket(place, blobs), environ=environ)
        with tempfile.TemporaryFile() as file:
            yield file
            file.seek(0)
            with translated(place):
                obstore.put(store, key, file, use_multipart=True)
        return
    path = Path(place).expanduser().absolute()
    if path.exists() and not force:
        raise Conflict(f"{path} is there already", hint="--force replaces it")
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # readable by its owner only
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def reading(place: str, blobs: BlobsSection, environ: Mapping[str, str]) -> Iterator[IO[bytes]]:
    if (key := _key(place)) is not None:
        import obstore

        store = open_store(_bucket(place, blobs), environ=environ)
        with tempfile.TemporaryFile() as file:
            with translated(place, place):
                for piece in obstore.get(store, key).stream():
                    file.write(bytes(piece))
            file.seek(0)
            yield file
        return
    path = Path(place).expanduser()
    try:
        opened = path.open("rb")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
    with opened:
        yield opened


def _key(place: str) -> str | None:
    """None: `place` is a file."""
    parts = urlsplit(place)
    if parts.scheme not in _SCHEMES:
        return None
    key = parts.path.strip("/")
    if not key:
        raise InvalidInput(
            f"{place} names a bucket; a backup needs a name in it, for example {place.rstrip('/')}/a.tar"
        )
    return key


def _bucket(place: str, blobs: BlobsSection) -> BlobsSection:
    """The bucket of `place`, reached as the configured one is."""
    parts = urlsplit(place)
    return blobs.model_copy(update={"url": f"{parts.scheme}://{parts.netloc}"})
