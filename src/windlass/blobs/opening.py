"""From the settings to a store of blobs. Object stores' client is imported only if one is configured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from windlass.blobs.connection import connect
from windlass.blobs.contract import Blobs
from windlass.blobs.local import LocalBlobs
from windlass.wire.config import BlobsSection

if TYPE_CHECKING:
    from obstore.store import ObjectStore


def open_blobs(config: BlobsSection, *, home: Path, environ: Mapping[str, str]) -> Blobs:
    if config.url is None:
        return LocalBlobs(home / "blobs")
    if config.url.startswith("file://"):
        return LocalBlobs(Path(config.url.removeprefix("file://")))
    from windlass.blobs.objects import ObjectBlobs

    parts = urlsplit(config.url)
    return ObjectBlobs(open_store(config, environ=environ), name=config.url, prefix=parts.path)


def open_store(config: BlobsSection, *, environ: Mapping[str, str]) -> ObjectStore:
    """The bucket itself. Nothing is sent yet: whether it can be used shows with the first request."""
    assert config.url is not None
    return connect(
        config.url,
        endpoint=config.endpoint,
        region=config.region,
        access_key=environ.get(config.access_key_variable),
        secret_key=environ.get(config.secret_key_variable),
        environ=environ,
        timeout_s=config.timeout,
        retries=config.retries,
    )
