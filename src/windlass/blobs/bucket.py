"""Objects by name below one address of an object store: `s3://BUCKET/PREFIX`, `gs://…`, `az://…`, `file:///PATH`.

An object is there whole or not at all; that is the only promise of the store that is relied upon. Retries of single
requests are the client's; what it gives up on is Unavailable here.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from windlass.blobs.connection import connect
from windlass.blobs.troubles import translated
from windlass.core.deaths import Deaths
from windlass.core.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# Dying on purpose at the N-th request: `N:before` or `N:after`. The crash tests sweep N; nothing else sets it.
FAULT_VARIABLE = "WINDLASS_FAULT_STORE"
ENDPOINT_VARIABLE = "AWS_ENDPOINT_URL"
_ADDRESS = re.compile(r"^(file:///[^\s?#]+|(s3|gs|az)://[^/\s?#]+(/[^\s?#]*)?)$")
_TIMEOUT_S = 30.0
_RETRIES = 4

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An object of a listing. `modified` is by the store's own clock."""

    size_bytes: int
    modified: float


class Bucket:
    def __init__(self, address: str, store: ObjectStore, *, prefix: str, deaths: Deaths | None = None) -> None:
        self.address = address
        self._store = store
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._deaths = deaths or Deaths({}, FAULT_VARIABLE)

    def at(self, name: str) -> str:
        """The address of what is called so."""
        return f"{self.address}/{name}"

    def put(self, name: str, data: bytes | memoryview) -> None:
        import obstore

        self._ask(lambda: obstore.put(self._store, self._prefix + name, data, use_multipart=False))

    def get(self, name: str) -> bytes:
        """Raises NotFound."""
        import obstore

        return self._ask(lambda: obstore.get(self._store, self._prefix + name).bytes().to_bytes(), name)

    def folders(self) -> list[str]:
        """Names up to their first slash, each once."""
        import obstore

        below = self._prefix or None
        found: Any = self._ask(lambda: obstore.list_with_delimiter(self._store, prefix=below))
        return sorted(path.rstrip("/").removeprefix(self._prefix) for path in found["common_prefixes"])

    def list(self, folder: str) -> dict[str, Found]:
        """What is in that folder, by its name there."""
        import obstore

        start = f"{self._prefix}{folder}/"
        pages: Any = self._ask(lambda: list(obstore.list(self._store, prefix=start)))
        return {
            item["path"].removeprefix(start): Found(size_bytes=item["size"], modified=item["last_modified"].timestamp())
            for page in pages
            for item in page
        }

    def delete(self, names: Iterable[str]) -> None:
        """One after another, in this order; what is not there is fine."""
        import obstore

        for name in names:
            with contextlib.suppress(NotFound):
                self._ask(lambda name=name: obstore.delete(self._store, self._prefix + name), name)  # type: ignore[misc]

    def _ask(self, request: Callable[[], Result], thing: str = "") -> Result:
        with translated(self.address, thing and f"object {self.at(thing)}"):
            return self._deaths.at(request)


def check_address(address: str) -> str:
    """The address without a slash at its end. Raises InvalidInput."""
    if not _ADDRESS.match(address):
        raise InvalidInput(
            f"{address!r} is not a store; known: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, file:///PATH"
        )
    return address.rstrip("/")


def open_bucket(
    address: str,
    *,
    endpoint: str | None = None,
    environ: Mapping[str, str],
    timeout_s: float = _TIMEOUT_S,
    retries: int = _RETRIES,
) -> Bucket:
    """Nothing is sent yet. Credentials are those of the environment, or the machine's own."""
    address = check_address(address)
    parts = urlsplit(address)
    deaths = Deaths(environ, FAULT_VARIABLE)
    if parts.scheme == "file":
        return Bucket(address, _folder(Path(parts.path)), prefix="", deaths=deaths)
    store = connect(
        address,
        environ=environ,
        endpoint=endpoint or environ.get(ENDPOINT_VARIABLE),
        access_key=environ.get("AWS_ACCESS_KEY_ID"),
        secret_key=environ.get("AWS_SECRET_ACCESS_KEY"),
        timeout_s=timeout_s,
        retries=retries,
    )
    return Bucket(address, store, prefix=parts.path, deaths=deaths)


def _folder(path: Path) -> ObjectStore:
    try:
        from obstore.store import LocalStore
    except ImportError as error:
        raise InvalidInput(
            f"file://{path} needs the `obstore` package", hint="pip install 'windlass[objects]'"
        ) from error
    path.mkdir(parents=True, exist_ok=True)
    return LocalStore(path, automatic_cleanup=True)  # a folder is what it is on S3: there while something is in it
