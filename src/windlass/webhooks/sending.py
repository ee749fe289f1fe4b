"""One HTTP request to a webhook, signed. No proxies, no redirects: either would send to a place that was not looked
at. Whatever goes wrong becomes a `Reply`.
"""

from __future__ import annotations

import base64
import email.utils
import hmac
import http.client
import math
import socket
import ssl
import time
import urllib.parse
from dataclasses import dataclass
from typing import Protocol

from windlass.core.errors import InvalidInput
from windlass.webhooks.addresses import BlockedAddress, WebhookRules, check_url, is_public
from windlass.webhooks.types import Reply

_MOST_OF_A_REPLY = 64 * 1024


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
        try:
            check_url(letter.url, self._rules)
        except InvalidInput as error:
            return Reply(error=error.message, hopeless="Cannot resolve" not in error.message)
        connection = _connect(letter.url, self._rules)
        try:
            return _exchange(connection, letter, at=at, timeout_s=self._rules.timeout_s)
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


class _Plain(http.client.HTTPConnection):
    """Looks at whom it has reached before it says anything, TLS included."""

    allow_private = False

    def connect(self) -> None:
        super().connect()
        if self.allow_private:
            return
        address = self.sock.getpeername()[0]
        if not is_public(address):
            self.close()
            raise BlockedAddress(
                f"Webhook connection blocked: {address} is not a public IP address."
                " This may indicate a DNS rebinding attempt."
            )


class _Secure(http.client.HTTPSConnection, _Plain):
    """HTTPSConnection lets its base connect, here `_Plain`, and then begins with TLS."""


def _connect(url: str, rules: WebhookRules) -> _Plain:
    parsed = urllib.parse.urlsplit(url)
    host = parsed.hostname or ""
    connection: _Plain
    if parsed.scheme == "https":
        connection = _Secure(host, parsed.port, timeout=rules.timeout_s, context=ssl.create_default_context())
    else:
        connection = _Plain(host, parsed.port, timeout=rules.timeout_s)
    connection.allow_private = rules.allow_private
    return connection


def _exchange(connection: _Plain, letter: Letter, *, at: float, timeout_s: float) -> Reply:
    deadline = time.monotonic() + timeout_s
    parsed = urllib.parse.urlsplit(letter.url)
    path = urllib.parse.quote(parsed.path or "/", safe="/%:@!$&'()*+,;=~-._")
    query = urllib.parse.quote(parsed.query, safe="/%:@!$&'()*+,;=~-._?")
    target = f"{path}?{query}" if query else path
    headers = headers_of(letter, at=at)
    if parsed.username is not None:
        who = f"{urllib.parse.unquote(parsed.username)}:{urllib.parse.unquote(parsed.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(who.encode()).decode()
    connection.request("POST", target, body=letter.body.encode(), headers=headers)
    answer = connection.getresponse()
    text = _read(connection.sock, answer, deadline)
    return Reply(
        status=answer.status, body=text, retry_after_s=_retry_after_s(answer.getheader("Retry-After", ""), at=at)
    )


def _read(sock: socket.socket | None, answer: http.client.HTTPResponse, deadline: float) -> str:
    """As much as is kept of it; a receiver that answers drop by drop is not waited for."""
    parts: list[bytes] = []
    size = 0
    while size < _MOST_OF_A_REPLY and (left_s := deadline - time.monotonic()) > 0:
        if sock is not None:
            sock.settimeout(left_s)
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
