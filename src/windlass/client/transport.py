"""HTTP underneath the SDK: the token, errors as exceptions of our own, retries where repeating is safe, and
following of event streams across lost connections.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from windlass.client.endpoint import Endpoint
from windlass.client.exchange import Lost, Reply, Request, exchange, is_plain
from windlass.core.errors import InvalidSpec, ServerUnreachable, Unavailable, WindlassError

if TYPE_CHECKING:
    import httpx

    from windlass.client.sse import ServerEvent

_RETRY_WAITS_S = (0.1, 0.3, 0.8, 1.5, 3.0)
# The server sends a sign of life every 10 s.
_SILENCE_S = 25.0

Query = Mapping[str, Any]


class Transport:
    """The way to one server, for any number of threads. `resolve` is asked again after a failure: an
    embedded server that was restarted has another address.
    """

    def __init__(self, resolve: Callable[[], Endpoint]) -> None:
        self._resolve = resolve
        self._endpoint: Endpoint | None = None
        self._http: httpx.Client | None = None

    @property
    def endpoint(self) -> Endpoint:
        if self._endpoint is None:
            self._endpoint = self._resolve()
        return self._endpoint

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
        self._http = self._endpoint = None

    def _forget(self) -> None:
        # Not closed: another thread may be in the middle of a request.
        self._http = self._endpoint = None

    def get(self, path: str, query: Query | None = None) -> Any:
        return self._request(Request(method="GET", path=path, query=_present(query)), repeat=True).json()

    def get_text(self, path: str) -> str:
        return self._request(Request(method="GET", path=path), repeat=True).content.decode()

    def server_date(self) -> str | None:
        """The server's clock, as HTTP tells it."""
        return self._request(Request(method="GET", path="/health"), repeat=True).date

    def post(
        self, path: str, body: Any = None, *, key: str | None = None, repeat: bool = False, patience_s: float = 30.0
    ) -> Any:
        """`key` makes a submission safe to repeat; `repeat` says that it is safe by nature."""
        headers = {"Idempotency-Key": key} if key else {}
        request = Request(method="POST", path=path, body=body, headers=headers, patience_s=patience_s)
        return self._request(request, repeat=repeat or key is not None).json()

    def send(self, path: str, chunks: Callable[[], Iterable[bytes]]) -> None:
        """A body of any size, made anew for each try."""
        self._request(Request(method="POST", path=path, chunks=chunks), repeat=True)

    def put(self, path: str, chunks: Callable[[], Iterable[bytes]], *, patience_s: float = 600.0) -> Any:
        """As `send`, to a place that is the same when it is sent twice."""
        request = Request(method="PUT", path=path, chunks=chunks, patience_s=patience_s)
        return self._request(request, repeat=True).json()

    def delete(self, path: str) -> Any:
        content = self._request(Request(method="DELETE", path=path), repeat=False).content
        return json.loads(content) if content else None

    @contextlib.contextmanager
    def reading(self, path: str, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """An answer of any size, as it comes. Raises ServerUnreachable where the connection breaks, at its beginning or
        in its midst."""
        import httpx

        try:
            with self._client().stream("GET", path, headers=dict(headers)) as response:
                if response.status_code >= 300:
                    raise_for_error(response.status_code, response.read())
                yield response
        except httpx.TransportError as error:
            url = self._endpoint.url if self._endpoint else None
            self._forget()
            raise unreachable(url, error) from error

    def _client(self) -> httpx.Client:
        import httpx

        if self._http is None:
            endpoint = self.endpoint
            headers = {"Authorization": f"Bearer {endpoint.token}"} if endpoint.token else {}
            # A proxy for the outside world has no business between us and this machine's own server.
            self._http = httpx.Client(
                base_url=endpoint.url,
                headers=headers,
                timeout=httpx.Timeout(30.0, connect=5.0),
                trust_env=not endpoint.is_local,
                verify=endpoint.url.startswith("https:"),  # reading certificates takes a while, and needs a reason
            )
        return self._http

    def _request(self, request: Request, *, repeat: bool) -> Reply:
        waits = iter(_RETRY_WAITS_S if repeat else ())
        while True:
            try:
                reply = self._exchange(request)
                if reply.status == 503 and (wait_s := next(waits, None)) is not None:
                    time.sleep(wait_s)
                    continue
                raise_for_error(reply.status, reply.content)
                return reply
            except (Lost, ServerUnreachable) as error:
                wait_s = next(waits, None)
                url = self._endpoint.url if self._endpoint else None
                self._forget()
                # Nobody listens: for a read, saying so at once is better than a long silence.
                hopeless = request.method == "GET" and (isinstance(error, ServerUnreachable) or error.nobody_listens)
                if wait_s is None or hopeless:
                    raise unreachable(url, error) from error
                time.sleep(wait_s)

    def _exchange(self, request: Request) -> Reply:
        """Raises Lost."""
        if is_plain(self.endpoint, os.environ):
            return exchange(self.endpoint, request)
        import httpx

        try:
            response = self._client().request(
                request.method,
                request.path,
                params=request.query,
                json=request.body,
                content=request.chunks() if request.chunks else None,
                headers=request.headers,
                timeout=httpx.Timeout(request.patience_s, connect=5.0),
            )
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            raise Lost(reason, nobody_listens=isinstance(error, httpx.ConnectError)) from error
        return Reply(status=response.status_code, content=response.content, date=response.headers.get("date"))

    def follow(
        self,
        path: str,
        query: Query | None = None,
        *,
        patience_s: float,
        deadline: float | None = None,
        on_gap: Callable[[bool], None] = lambda _lost: None,
    ) -> Iterator[ServerEvent]:
        """Events until one of kind `end`, across lost connections, each once. `on_gap(True)` tells that the connection
        is lost, `on_gap(False)` that it is back. Raises ServerUnreachable after `patience_s` without one, and
        TimeoutError at `deadline` (of the monotonic clock).
        """
        import httpx

        last_id: str | None = None
        lost_since: float | None = None
        while True:
            try:
                for event in self._events(path, query, last_id, deadline):
                    if event is None:
                        if lost_since is not None:
                            lost_since = None
                            on_gap(False)
                        continue
                    last_id = event.id or last_id
                    yield event
                    if event.kind == "end":
                        return
                cause: Exception = ConnectionError("the stream ended early")
            except (httpx.TransportError, Unavailable) as error:
                cause = error
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                raise TimeoutError("the time is over")
            if lost_since is None:
                lost_since = now
                on_gap(True)
            url = self._endpoint.url if self._endpoint else None
            self._forget()
            if now - lost_since >= patience_s:
                raise unreachable(url, cause) from cause
            time.sleep(0.2 if now - lost_since < 2 else 1.0)

    def _events(
        self, path: str, query: Query | None, last_id: str | None, deadline: float | None
    ) -> Iterator[ServerEvent | None]:
        """One connection's events; the first item is None and tells that the server has answered."""
        import httpx

        from windlass.client.sse import parse_events, split_lines

        silence_s = _SILENCE_S if deadline is None else max(0.01, min(_SILENCE_S, deadline - time.monotonic()))
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
        timeout = httpx.Timeout(silence_s, connect=5.0)
        with self._client().stream("GET", path, params=_present(query), headers=headers, timeout=timeout) as response:
            if response.status_code >= 300:
                raise_for_error(response.status_code, response.read())
            yield None
            for event in parse_events(split_lines(response.iter_bytes())):
                yield event
                if deadline is not None and time.monotonic() >= deadline:
                    return


def _present(query: Query | None) -> dict[str, Any]:
    return {name: value for name, value in (query or {}).items() if value is not None and value != []}


def unreachable(url: str | None, cause: Exception) -> ServerUnreachable:
    if isinstance(cause, ServerUnreachable):
        return cause
    reason = str(cause) or type(cause).__name__
    return ServerUnreachable(
        f"the server at {url} cannot be reached: {reason}",
        hint="is it running? `windlass up --daemon` starts one here; WINDLASS_URL names another",
    )


def _error_classes() -> dict[str, type[WindlassError]]:
    found: dict[str, type[WindlassError]] = {}
    left: list[type[WindlassError]] = [WindlassError]
    while left:
        kind = left.pop()
        found.setdefault(kind.code, kind)  # a subclass without a code of its own is told by its parent's
        left.extend(kind.__subclasses__())
    return found


def raise_for_error(status: int, content: bytes) -> None:
    """Turn an error body into the exception that the server raised."""
    if status < 300:
        return
    try:
        body = json.loads(content)
        code, message, hint = str(body["code"]), str(body["message"]), body.get("hint")
    except (ValueError, KeyError, TypeError, AttributeError):
        shown = content[:200].decode(errors="replace").strip()
        hint = "is this a Windlass server?" if status >= 400 else "it has moved, perhaps to https: give its new address"
        raise WindlassError(f"the server answered {status}: {shown or 'nothing'}", hint=hint) from None
    kind = _error_classes().get(code, WindlassError)
    if issubclass(kind, InvalidSpec):
        raise InvalidSpec([message], hint=hint)
    raise kind(message, hint=hint)
