"""Requests to the server, over one connection that is kept. Standard library only, and never through a proxy: the
server is part of the cluster."""

from __future__ import annotations

import json
import socket
from typing import Any, Callable, NamedTuple, Union

from .http1 import BadAnswer, Connection, Response, parse_address

_PATIENCE_S = 30.0  # the server holds a hello for up to ten seconds


class Unreachable(Exception):
    """No answer, or one that says to try again. Nothing is known about whether the request had an effect."""


class Refused(Exception):
    """An answer that will not change: `status` says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__("%d: %s" % (status, message))
        self.status = status


class Answer(NamedTuple):
    status: int
    body: bytes

    def json(self) -> dict[str, Any]:
        value = json.loads(self.body)
        if not isinstance(value, dict):
            raise Unreachable("an answer is %s where an object belongs" % type(value).__name__)
        return value


class Courier:
    def __init__(self, server: str, attempt_id: str, node_rank: int, token: str) -> None:
        try:
            self._secure, self._host, self._port, path = parse_address(server)
        except ValueError:
            message = "WINDLASS_SERVER is %r; a URL like http://windlass:8470 is needed" % server
            raise ValueError(message) from None
        self._prefix = "%s/api/nodes/%s/%d" % (path, attempt_id, node_rank)
        self._headers = {"Authorization": "Bearer " + token, "User-Agent": "windlass-agent"}
        self._connection: Connection | None = None

    def post(
        self, name: str, body: Union[bytes, dict[str, Any]], meanwhile: Callable[[], object] | None = None
    ) -> Answer:
        """Raises Unreachable or Refused. Repeated once at once if a kept connection turns out to be closed. `meanwhile`
        is done while the answer is on its way."""
        if isinstance(body, dict):
            data, kind = json.dumps(body).encode(), "application/json"
        else:
            data, kind = body, "application/octet-stream"
        response = self._request("POST", name, data, {"Content-Type": kind}, meanwhile)
        try:
            content = response.read()
        except (OSError, BadAnswer) as error:
            self.close()
            raise Unreachable("the answer to %s broke off: %s" % (name, error)) from error
        if not response.keeps:
            self.close()
        return Answer(response.status, content)

    def open(self, name: str) -> Response:
        """For answers that are read in pieces; the connection is free again when all is read."""
        return self._request("GET", name, None, {}, None)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def own_address(self) -> str:
        """The address that this node has towards the server. Asks the routing table; no packet is sent."""
        family, kind, _, _, target = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])

    def _request(
        self,
        method: str,
        name: str,
        data: bytes | None,
        headers: dict[str, str],
        meanwhile: Callable[[], object] | None,
    ) -> Response:
        was_kept = self._connection is not None
        try:
            connection = self._send(method, name, data, headers)
            if meanwhile is not None:
                meanwhile()
            response = connection.getresponse()
        except (OSError, BadAnswer) as error:
            self.close()
            if was_kept:
                return self._request(method, name, data, headers, meanwhile)
            raise Unreachable("%s:%d does not answer: %s" % (self._host, self._port, error)) from error
        if response.status in (200, 202):
            return response
        message = _message(response)
        # A page that is not of this server's making comes from a proxy before it, which may only miss the server.
        is_final = message is not None or response.status == 413
        if response.status >= 500 or response.status in (408, 429) or not is_final:
            raise Unreachable("%s is answered with %d: %s" % (name, response.status, message or response.reason))
        raise Refused(response.status, message or response.reason)

    def _send(self, method: str, name: str, data: bytes | None, headers: dict[str, str]) -> Connection:
        if self._connection is None:
            self._connection = Connection(self._host, self._port, secure=self._secure, timeout_s=_PATIENCE_S)
        self._connection.request(method, "%s/%s" % (self._prefix, name), data, {**self._headers, **headers})
        return self._connection


def _message(response: Response) -> str | None:
    """What the server says; None if it is not the server that answers. Gateways speak JSON with a `message` too: the
    server's own words come with a `code`."""
    try:
        body = json.loads(response.read())
        return str(body["message"]) if "code" in body else None
    except (OSError, BadAnswer, ValueError, KeyError, TypeError):
        return None
