"""One HTTP request to a webhook, signed. No proxies, no redirects: either would send to a place that was not looked
at. Whatever goes wrong becomes a `Reply`.
"""

from __future__ import annotations

import base64
import email.utils
import hmac
import http.client
import io
import math
import socket
import ssl
import time
import urllib.parse
from dataclasses import dataclass
from typing import Any, Protocol

from windlass.core.errors import InvalidInput
from windlass.webhooks.addresses import BlockedAddress, WebhookRules, addresses_of, check_url, is_public
from windlass.webhooks.types import Reply

_MOST_OF_A_REPLY = 64 * 1024
_PIECE_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    url: str
    delivery_id: str
    body: str
    secret: str | None


class Sender(Protocol):
    def send(self, letter: Letter, *, at: float) -> Reply:
        """Once; blocks until there is an answer or the time is over. Raises nothing."""
        ...


class HttpSender:
    def __init__(self, rules: WebhookRules) -> None:
        self._rules = rules

    def send(self, letter: Letter, *, at: float) -> Reply:
        deadline = _Deadline(self._rules.timeout_s)
        try:
            check_url(letter.url, self._rules, resolve=deadline.addresses_of)
        except InvalidInput as error:
            return Reply(error=error.message, hopeless="Cannot resolve" not in error.message)
        connection = _connect(letter.url, self._rules, deadline)
        try:
            return _exchange(connection, letter, at=at)
        except BlockedAddress as error:
            return Reply(error=str(error), hopeless=True)
        except (OSError, http.client.HTTPException) as error:
            return Reply(error=f"{type(error).__name__}: {error}")
        finally:
            connection.close()


def headers_of(letter: Letter, *, at: float) -> dict[str, str]:
    timestamp = str(int(at))
    headers = {
        "Content-Type": "application/json",
        "X-MLflow-Delivery-Id": letter.delivery_id,
        "X-MLflow-Timestamp": timestamp,
    }
    if letter.secret:
        headers["X-MLflow-Signature"] = sign(letter.secret, letter.delivery_id, timestamp, letter.body)
    return headers


def sign(secret: str, delivery_id: str, timestamp: str, body: str) -> str:
    signed = f"{delivery_id}.{timestamp}.{body}".encode()
    return "v1," + base64.b64encode(hmac.digest(secret.encode(), signed, "sha256")).decode()


class _Deadline:
    """One for the whole exchange: a receiver that takes or gives drop by drop has no more time than others."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._at = time.monotonic() + limit_s

    def left_s(self) -> float:
        """Raises TimeoutError when there is none."""
        if (left_s := self._at - time.monotonic()) <= 0:
            raise TimeoutError(f"it took longer than {self._limit_s:g} s")
        return left_s

    def addresses_of(self, host: str) -> list[str]:
        return addresses_of(host, within_s=self.left_s())


class _Heard(io.RawIOBase):
    """What a socket receives until a deadline; all that an HTTPResponse asks of a socket."""

    def __init__(self, sock: socket.socket, deadline: _Deadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(self._deadline.left_s())
        return self._sock.recv_into(buffer)


class _Plain(http.client.HTTPConnection):
    """Looks at whom it has reached before it says anything, TLS included."""

    allow_private = False
    deadline: _Deadline

    def connect(self) -> None:
        self.sock = _reach(self.host, self.port, self.deadline)
        if self.allow_private:
            return
        address = self.sock.getpeername()[0]
        if not is_public(address):
            self.close()
            raise BlockedAddress(
                f"Webhook connection blocked: {address} is not a public IP address."
                " This may indicate a DNS rebinding attempt."
            )

    def send(self, data: Any) -> None:
        if self.sock is None:
            self.connect()
        for start in range(0, len(data), _PIECE_BYTES):
            self.sock.settimeout(self.deadline.left_s())
            self.sock.sendall(data[start : start + _PIECE_BYTES])

    def hear(self) -> http.client.HTTPResponse:
        """In place of `getresponse`, which waits anew for each byte."""
        answer = http.client.HTTPResponse(_Heard(self.sock, self.deadline), method="POST")  # type: ignore[arg-type]
        answer.begin()
        return answer


class _Secure(http.client.HTTPSConnection, _Plain):
    """HTTPSConnection lets its base connect, here `_Plain`, and then begins with TLS."""


def _reach(host: str, port: int, deadline: _Deadline) -> socket.socket:
    """The first of its addresses that answers."""
    failure: OSError | None = None
    for address in deadline.addresses_of(host):
        try:
            sock = socket.create_connection((address, port), timeout=deadline.left_s())
        except OSError as error:
            failure = failure or error
            continue
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(deadline.left_s())  # for TLS to begin
        return sock
    raise failure or OSError(f"{host} has no address")


def _connect(url: str, rules: WebhookRules, deadline: _Deadline) -> _Plain:
    parsed = urllib.parse.urlsplit(url)
    host = parsed.hostname or ""
    connection: _Plain
    if parsed.scheme == "https":
        connection = _Secure(host, parsed.port, context=ssl.create_default_context())
    else:
        connection = _Plain(host, parsed.port)
    connection.deadline = deadline
    connection.allow_private = rules.allow_private
    return connection


def _exchange(connection: _Plain, letter: Letter, *, at: float) -> Reply:
    parsed = urllib.parse.urlsplit(letter.url)
    path = urllib.parse.quote(parsed.path or "/", safe="/%:@!$&'()*+,;=~-._")
    query = urllib.parse.quote(parsed.query, safe="/%:@!$&'()*+,;=~-._?")
    target = f"{path}?{query}" if query else path
    headers = headers_of(letter, at=at)
    if parsed.username is not None:
        who = f"{urllib.parse.unquote(parsed.username)}:{urllib.parse.unquote(parsed.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(who.encode()).decode()
    connection.request("POST", target, body=letter.body.encode(), headers=headers)
    answer = connection.hear()
    text = _read(answer)
    return Reply(
        status=answer.status, body=text, retry_after_s=_retry_after_s(answer.getheader("Retry-After", ""), at=at)
    )


def _read(answer: http.client.HTTPResponse) -> str:
    """As much as is kept of it, or has come when the time is over."""
    parts: list[bytes] = []
    size = 0
    while size < _MOST_OF_A_REPLY:
        try:
            part = answer.read1(_MOST_OF_A_REPLY - size)
        except (OSError, http.client.HTTPException):
            break  # what counts is the status, which is there
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts).decode("utf-8", "replace")


def _retry_after_s(text: str, *, at: float) -> float | None:
    """Seconds, or a date."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - at
        except ValueError:
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
