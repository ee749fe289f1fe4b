"""One request: signed, to whom it was meant for, and whatever goes wrong is a reply."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from windlass.webhooks.addresses import WebhookRules
from windlass.webhooks.events import render_body
from windlass.webhooks.sending import HttpSender, Letter, headers_of, sign

ANYWHERE = WebhookRules(schemes=("http",), allow_private=True, timeout_s=5.0)


def letter(url: str, secret: str | None = None) -> Letter:
    body = render_body("registered_model.created", {"name": "ä"}, at=1_700_000_000.5)
    return Letter(url=url, delivery_id="11111111-2222-3333-4444-555555555555", body=body, secret=secret)


@contextmanager
def answering(answer: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A receiver for one request; what it was sent."""
    heard: list[bytes] = []

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            got = b""
            while b"\r\n\r\n" not in got or len(got.partition(b"\r\n\r\n")[2]) < _length(got):
                part = connection.recv(65536)
                if not part:
                    break
                got += part
            heard.append(got)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", heard
        thread.join(10)


def _length(got: bytes) -> int:
    [line] = [line for line in got.split(b"\r\n") if line.lower().startswith(b"content-length")]
    return int(line.partition(b":")[2])


def test_what_is_told() -> None:
    assert json.loads(letter("").body) == {
        "entity": "registered_model",
        "action": "created",
        "timestamp": "2023-11-14T22:13:20.500000+00:00",
        "data": {"name": "ä"},
    }


def test_the_signature_covers_id_time_and_body() -> None:
    """As a receiver reckons it: HMAC-SHA256 of `id.time.body`, in base64."""
    assert sign("key", "id", "1", "{}") == "v1,5PVmP2AfJGwnp9flV+flrzfukNWA9zyUdqvI+IQalVs="
    headers = headers_of(letter("", "key"), at=1_700_000_000.9)
    assert headers["X-MLflow-Timestamp"] == "1700000000"
    assert headers["X-MLflow-Signature"] == sign("key", letter("").delivery_id, "1700000000", letter("").body)
    assert "X-MLflow-Signature" not in headers_of(letter(""), at=1.0)


def test_an_answer() -> None:
    ok = b"HTTP/1.1 429 Too Many\r\nContent-Length: 5\r\nRetry-After: 3\r\nConnection: close\r\n\r\nlater"
    with answering(ok) as (url, heard):
        reply = HttpSender(ANYWHERE).send(letter(f"{url}/ä?c=d"), at=1_700_000_000.0)
    assert (reply.status, reply.body, reply.retry_after_s, reply.is_success) == (429, "later", 3.0, False)
    assert heard[0].startswith(b"POST /%C3%A4?c=d HTTP/1.1\r\n")
    assert heard[0].endswith(letter("").body.encode())


def test_redirects_are_not_followed() -> None:
    with answering(b"HTTP/1.1 307 Go\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n") as (url, _):
        assert HttpSender(ANYWHERE).send(letter(url), at=1.0).status == 307


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    reply = HttpSender(ANYWHERE).send(letter(f"http://127.0.0.1:{port}"), at=1.0)
    assert reply.status is None
    assert "ConnectionRefusedError" in str(reply.error)
    assert not reply.hopeless


def test_nonsense_for_an_answer() -> None:
    with answering(b"hello\r\n\r\n") as (url, _):
        reply = HttpSender(ANYWHERE).send(letter(url), at=1.0)
    assert "BadStatusLine" in str(reply.error)


@pytest.mark.parametrize("beginning", [b"HTTP/1.1 200 OK\r\nX-Slow: ", b"", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_a_receiver_that_answers_drop_by_drop_has_no_more_time_than_others(beginning: bytes) -> None:
    over = threading.Event()

    def drip() -> None:
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(beginning)
            while not over.wait(0.05):
                connection.sendall(b"H")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        rules = WebhookRules(schemes=("http",), allow_private=True, timeout_s=0.5)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(HttpSender(rules).send, letter(url), at=1.0)
            try:
                reply = sending.result(20)
            finally:
                over.set()
        thread.join(10)
    assert reply.status is None
    assert str(reply.error).startswith("TimeoutError: ")


def test_a_body_that_never_ends_is_cut_off() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nsome"
    over = threading.Event()

    def stall() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.sendall(head)
            over.wait(20)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=stall, daemon=True)
        thread.start()
        rules = WebhookRules(schemes=("http",), allow_private=True, timeout_s=2.0)
        reply = HttpSender(rules).send(letter(f"http://127.0.0.1:{listening.getsockname()[1]}"), at=1.0)
        over.set()
        thread.join(10)
    assert (reply.status, reply.body) == (200, "some")


def test_a_place_inside_hears_nothing() -> None:
    """Whatever its name meant when the URL was looked at: what counts is who was reached."""
    rules = WebhookRules(schemes=("http",))
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        assert HttpSender(rules).send(letter(url), at=1.0).hopeless
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("windlass.webhooks.sending.check_url", lambda *_told, **_options: None)
            reply = HttpSender(rules).send(letter(url), at=1.0)
        listening.settimeout(5)
        connection, _ = listening.accept()
        with connection:
            heard.append(connection.recv(1024))
    assert "127.0.0.1 is not a public IP address" in str(reply.error)
    assert reply.hopeless
    assert heard == [b""]


@pytest.mark.parametrize("allow_private", [True, False])
def test_a_name_server_that_says_nothing_takes_no_longer_than_others(
    monkeypatch: pytest.MonkeyPatch, allow_private: bool
) -> None:
    is_over = threading.Event()

    def never(*_args: object, **_options: object) -> list[object]:
        is_over.wait(60)
        raise OSError("the test is over")

    monkeypatch.setattr("windlass.webhooks.addresses.socket.getaddrinfo", never)
    rules = WebhookRules(schemes=("http",), allow_private=allow_private, timeout_s=0.05)
    try:
        reply = HttpSender(rules).send(letter("http://example.com/"), at=1.0)
    finally:
        is_over.set()
    assert reply.status is None
    assert "no answer to where 'example.com' is" in (reply.error or "")
    assert not reply.hopeless
