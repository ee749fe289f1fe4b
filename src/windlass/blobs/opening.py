"""From the settings to a store of blobs. Object stores' client is imported only if one is configured."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from windlass.blobs.contract import Blobs
from windlass.blobs.local import LocalBlobs
from windlass.core.errors import InvalidInput
from windlass.wire.config import BlobsSection

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_CONNECT_S = 5.0
_LONGEST_REQUEST_S = 900.0  # a large part on a slow line; silence is noticed sooner, by the setting `timeout`


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
    try:
        from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store
    except ImportError as error:
        raise InvalidInput(
            f"{config.url} needs the `obstore` package on the server", hint="pip install 'windlass[objects]'"
        ) from error
    assert config.url is not None
    parts = urlsplit(config.url)
    common: dict[str, Any] = {"client_options": _client(config), "retry_config": _retries(config)}
    try:
        match parts.scheme:
            case "s3":
                return S3Store(parts.netloc, config=_s3(config, environ), **common)
            case "gs":
                return GCSStore(parts.netloc, **common)
            case "az":
                return AzureStore(parts.netloc, **common)
            case _:
                return MemoryStore()
    except Exception as error:  # each has its own, for settings that it finds in the environment
        raise InvalidInput(f"{config.url} cannot be opened: {error}", hint="docs/config.md, `blobs`") from error


def _s3(config: BlobsSection, environ: Mapping[str, str]) -> Any:
    """Without keys in the environment the client asks the machine for its role."""
    found: dict[str, Any] = {
        "endpoint": config.endpoint,
        "region": config.region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1",
        "access_key_id": environ.get(config.access_key_variable),
        "secret_access_key": environ.get(config.secret_key_variable),
    }
    return {key: value for key, value in found.items() if value}


def _client(config: BlobsSection) -> dict[str, Any]:
    plain = bool(config.endpoint and config.endpoint.startswith("http://"))
    return {
        "allow_http": plain,
        "connect_timeout": timedelta(seconds=min(_CONNECT_S, config.timeout)),
        "read_timeout": timedelta(seconds=config.timeout),
        "timeout": timedelta(seconds=_LONGEST_REQUEST_S),
    }


def _retries(config: BlobsSection) -> dict[str, Any]:
    longest = timedelta(seconds=min(180.0, config.timeout * (config.retries + 1)))
    pauses = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2}
    return {"max_retries": config.retries, "retry_timeout": longest, "backoff": pauses}
