"""A client of an object store: S3, GCS and Azure by way of obstore, which is imported only here and where it is used.

Jobs use it on nodes that have neither the server's settings nor what reads them: core and the standard library alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from windlass.core.errors import InvalidInput

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_CONNECT_S = 5.0
_LONGEST_REQUEST_S = 900.0  # a large part on a slow line; silence is noticed sooner, by `timeout_s`


def connect(
    url: str,
    *,
    environ: Mapping[str, str],
    endpoint: str | None = None,
    region: str | None = None,
    access_key: str | None = None,
    secret_key: str | None = None,
    timeout_s: float = 30.0,
    retries: int = 4,
) -> ObjectStore:
    """Nothing is sent yet: whether it can be used shows with the first request. Without keys the S3 client asks the
    machine for its role; those of Google and Azure look into the environment themselves."""
    try:
        from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store
    except ImportError as error:
        raise InvalidInput(f"{url} needs the `obstore` package", hint="pip install 'windlass[objects]'") from error
    parts = urlsplit(url)
    common: dict[str, Any] = {
        "client_options": _client(endpoint, timeout_s),
        "retry_config": _retries(timeout_s, retries),
    }
    try:
        match parts.scheme:
            case "s3":
                found: dict[str, Any] = {
                    "endpoint": endpoint,
                    "region": region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1",
                    "access_key_id": access_key,
                    "secret_access_key": secret_key,
                }
                config: Any = {key: value for key, value in found.items() if value}
                return S3Store(parts.netloc, config=config, **common)
            case "gs":
                return GCSStore(parts.netloc, **common)
            case "az":
                return AzureStore(parts.netloc, **common)
            case _:
                return MemoryStore()
    except Exception as error:  # each has its own, for settings that it finds in the environment
        raise InvalidInput(f"{url} cannot be opened: {error}", hint="docs/config.md, `blobs`") from error


def _client(endpoint: str | None, timeout_s: float) -> dict[str, Any]:
    return {
        "allow_http": bool(endpoint and endpoint.startswith("http://")),
        "connect_timeout": timedelta(seconds=min(_CONNECT_S, timeout_s)),
        "read_timeout": timedelta(seconds=timeout_s),
        "timeout": timedelta(seconds=_LONGEST_REQUEST_S),
    }


def _retries(timeout_s: float, retries: int) -> dict[str, Any]:
    longest = timedelta(seconds=min(180.0, timeout_s * (retries + 1)))
    pauses = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2}
    return {"max_retries": retries, "retry_timeout": longest, "backoff": pauses}
