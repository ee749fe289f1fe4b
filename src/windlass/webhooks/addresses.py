"""Where webhooks may go. A server stands inside a network that whoever writes webhooks may not reach: by default only
public addresses are sent to, and only over HTTPS. Names are looked up when a webhook is made, and the address that was
really connected to is looked at again before a byte is sent, since a name may mean another one by then.
"""

from __future__ import annotations

import ipaddress
import queue
import re
import socket
import threading
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from windlass.core.errors import InvalidInput

_NAME = re.compile(r"(?=.{1,63}$)[a-z0-9]([a-z0-9._-]*[a-z0-9])?", re.IGNORECASE | re.ASCII)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_YES = ("true", "1")

Resolve = Callable[[str], Sequence[str]]  # addresses of a host; raises OSError or ValueError


class BlockedAddress(Exception):
    """Not a place that webhooks may go to; nothing was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRules:
    schemes: tuple[str, ...] = ("https",)
    allow_private: bool = False
    timeout_s: float = 30.0
    most_retries: int = 3

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> WebhookRules:
        """The variables have the names that MLflow's own server knows. Raises InvalidInput."""
        schemes = environ.get("MLFLOW_WEBHOOK_ALLOWED_SCHEMES", "https")
        private = environ.get("MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS", "false").strip().lower()
        return cls(
            schemes=tuple(part.strip().lower() for part in schemes.split(",") if part.strip()),
            allow_private=private in _YES,
            timeout_s=_number(environ, "MLFLOW_WEBHOOK_REQUEST_TIMEOUT", 30, least=1),
            most_retries=_number(environ, "MLFLOW_WEBHOOK_REQUEST_MAX_RETRIES", 3, least=0),
        )


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"Webhook name {name!r} is invalid. It must start and end with a letter or digit, be less than 63"
            " characters long, and contain only letters, digits, dots (.), underscores (_), and hyphens (-)."
        )


def check_url(url: str, rules: WebhookRules, *, resolve: Resolve | None = None) -> None:
    """Raises InvalidInput."""
    if not url.strip():
        raise InvalidInput(f"Webhook URL cannot be empty or just whitespace: {url!r}")
    try:
        parsed = urllib.parse.urlparse(url)
        host, _port = parsed.hostname, parsed.port
    except ValueError as error:
        raise InvalidInput(f"Invalid webhook URL {url!r}: {error!r}") from None
    if parsed.scheme not in rules.schemes:
        known = ", ".join(rules.schemes)
        raise InvalidInput(
            f"Invalid webhook URL scheme: {parsed.scheme!r}. Allowed schemes are: {known}.",
            hint="MLFLOW_WEBHOOK_ALLOWED_SCHEMES=http,https in the server's environment allows others",
        )
    if not host or any(letter.isspace() or not letter.isprintable() for letter in url):
        raise InvalidInput(f"Webhook URL must include a hostname: {url!r}")
    if not rules.allow_private:
        _check_host(host, resolve or partial(addresses_of, within_s=rules.timeout_s))


def is_public(address: str) -> bool:
    """IPv4 that is wrapped in IPv6 counts as what it is."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return inner.is_global
    return ip.is_global


def addresses_of(host: str, *, within_s: float) -> list[str]:
    """Raises OSError, TimeoutError among them, or ValueError. The system's resolver cannot be told how long it may
    take, so a thread waits for it: one that gets no answer goes on by itself until the resolver gives up."""
    answer: queue.SimpleQueue[list[str] | OSError | ValueError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answer.put([str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)])
        except (OSError, ValueError) as error:
            answer.put(error)

    threading.Thread(target=ask, name="webhook-lookup", daemon=True).start()
    try:
        found = answer.get(timeout=within_s)
    except queue.Empty:
        raise TimeoutError(f"no answer to where {host!r} is within {within_s:.3g} s") from None
    if isinstance(found, Exception):
        raise found
    return found


def _check_host(host: str, resolve: Resolve) -> None:
    try:
        found = resolve(host)
    except (OSError, ValueError) as error:  # among the latter names that no host can have
        raise InvalidInput(f"Cannot resolve Webhook URL hostname {host!r}: {error}") from None
    for address in found:
        if not is_public(address):
            raise InvalidInput(
                f"Webhook URL must not resolve to a non-public IP address. {host!r} resolves to {address}.",
                hint="MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS=true in the server's environment allows them",
            )


def _number(environ: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    text = environ.get(name, str(default))
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise InvalidInput(f"{name} is {text!r}; it takes a whole number from {least} on")
    return number
