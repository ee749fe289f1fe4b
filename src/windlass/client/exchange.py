"""One request and its answer, with the standard library alone: it is loaded in a fraction of the time that a full HTTP
client takes, and most commands send one request and end. For servers that neither TLS nor a proxy stands before.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from windlass.agent.http1 import BadAnswer, Connection
from windlass.client.endpoint import Endpoint

_CONNECT_S = 5.0
_PROXIES = ("http_proxy", "all_proxy")


class Request(NamedTuple):
    method: str
    path: str
    query: Mapping[str, Any] = MappingProxyType({})
    body: Any = None  # sent as JSON
    chunks: Callable[[], Iterable[bytes]] | None = None  # a body of any size, made anew for each try
    headers: Mapping[str, str] = MappingProxyType({})
    patience_s: float = 30.0  # with the answer


class Reply(NamedTuple):
    status: int
    content: bytes
    date: str | None  # the server's clock, as HTTP tells it

    def json(self) -> Any:
        return json.loads(self.content)


class Lost(Exception):
    """No answer. Whether the request had an effect is not known, unless `nobody_listens`."""

    def __init__(self, message: str, *, nobody_listens: bool) -> None:
        super().__init__(message)
        self.nobody_listens = nobody_listens


def is_plain(endpoint: Endpoint, environ: Mapping[str, str]) -> bool:
    """Whether `exchange` can talk to it."""
    if not endpoint.url.startswith("http:"):
        return False
    return endpoint.is_local or not any(environ.get(name) for given in _PROXIES for name in (given, given.upper()))


def exchange(endpoint: Endpoint, request: Request) -> Reply:
    """Over a connection of its own, so any number of threads can. Raises Lost."""
    where = urlsplit(endpoint.url)
    headers = {"User-Agent": "windlass", "Connection": "close", **request.headers}
    if endpoint.token:
        headers["Authorization"] = f"Bearer {endpoint.token}"
    content: Any = request.chunks() if request.chunks else None
    if request.body is not None:
        content = json.dumps(request.body, allow_nan=False).encode()
        headers["Content-Type"] = "application/json"
    path = where.path + request.path
    if request.query:
        path += "?" + urlencode(request.query, doseq=True)
    connection = Connection(where.hostname or "", where.port or 80, timeout_s=_CONNECT_S)
    try:
        _connect(connection, request.patience_s)
        # A server that refuses a long body answers before its end, and hears no more of it.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request(request.method, path, content, headers)
        response = connection.getresponse()
        return Reply(status=response.status, content=response.read(), date=response.getheader("date"))
    except (OSError, BadAnswer) as error:
        raise Lost(str(error) or type(error).__name__, nobody_listens=False) from error
    finally:
        connection.close()


def _connect(connection: Connection, patience_s: float) -> None:
    try:
        connection.connect()
    except OSError as error:
        # One that is only slow to take the connection may be there.
        is_slow = isinstance(error, TimeoutError)
        raise Lost(str(error) or type(error).__name__, nobody_listens=not is_slow) from error
    connection.set_timeout(patience_s)
