"""HTTP underneath the SDK against a server that misbehaves on command: errors, retries, streams that break."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from windlass.client.endpoint import Endpoint
from windlass.client.sse import ServerEvent, parse_events, split_lines
from windlass.client.transport import Transport, raise_for_error
from windlass.core import errors

Answer = Callable[[BaseHTTPRequestHandler], None]


class Scripted:
    """Gives its answers one by one, and remembers the requests."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        script = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                script.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                script.answers.pop(0)(self)

            do_POST = do_GET  # noqa: N815 - named by the standard library

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    server = Scripted()
    yield server
    server.close()


@pytest.fixture
def transport(scripted: Scripted) -> Iterator[Transport]:
    made = Transport(lambda: Endpoint(url=scripted.url, token="secret"))
    yield made
    made.close()


def replies(status: int, body: Any) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        content = json.dumps(body).encode()
        request.send_response(status)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    return answer


def hangs_up(request: BaseHTTPRequestHandler) -> None:
    request.close_connection = True


def streams(*events: tuple[str, str, Any], rest: str = "") -> Answer:
    """Sends the events and closes the connection, whether or not the last of them was `end`."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "text/event-stream")
        request.end_headers()
        for kind, number, data in events:
            request.wfile.write(f"event: {kind}\nid: {number}\ndata: {json.dumps(data)}\n\n".encode())
        request.wfile.write(rest.encode())
        request.close_connection = True

    return answer


def test_the_token_and_the_query_are_sent(scripted: Scripted, transport: Transport) -> None:
    scripted.answers = [replies(200, {"ok": True})]
    assert transport.get("/api/runs", {"state": ["a", "b"], "name": None, "limit": 3}) == {"ok": True}
    path, headers, _ = scripted.requests[0]
    assert path == "/api/runs?state=a&state=b&limit=3"
    assert headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("not_found", errors.NotFound),
        ("cannot_fit", errors.CannotFit),
        ("idempotency_mismatch", errors.IdempotencyMismatch),
        ("storage_full", errors.StorageFull),
        ("invalid_spec", errors.InvalidSpec),
        ("from_the_future", errors.WindlassError),
    ],
)
def test_error_bodies_become_the_errors_they_were(code: str, kind: type[errors.WindlassError]) -> None:
    body = json.dumps({"code": code, "message": "no 'x'", "hint": "try 'y'"}).encode()
    with pytest.raises(errors.WindlassError) as caught:
        raise_for_error(404, body)
    assert type(caught.value) is kind
    assert (caught.value.message, caught.value.hint) == ("no 'x'", "try 'y'")


@pytest.mark.parametrize("body", [b"<html>Bad gateway</html>", b"", b"[]", b'{"detail": "x"}', b"\xff"])
def test_an_answer_that_is_not_ours(body: bytes) -> None:
    with pytest.raises(errors.WindlassError, match="the server answered 502"):
        raise_for_error(502, body)


def test_a_server_that_has_moved(scripted: Scripted, transport: Transport) -> None:
    """As when `http:` was written for one that speaks `https:` only."""
    scripted.answers = [replies(308, "<html>Permanent Redirect</html>")]
    with pytest.raises(errors.WindlassError, match="the server answered 308") as caught:
        transport.get("/api/info")
    assert "https" in (caught.value.hint or "")


def test_a_refusal_that_comes_before_the_end_of_a_body_is_heard() -> None:
    body = json.dumps({"code": "storage_full", "message": "no room left", "hint": None}).encode()

    def refuse(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as request:
            while request.readline().strip():
                pass
            connection.sendall(b"HTTP/1.1 507 Full\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=refuse, args=(listener,))
        thread.start()
        transport = Transport(lambda: Endpoint(url=f"http://127.0.0.1:{listener.getsockname()[1]}"))
        with pytest.raises(errors.StorageFull, match="no room left"):
            transport.send("/api/blobs", lambda: iter([bytes(1 << 20)] * 64))  # more than any buffer on the way holds
        thread.join()


def test_a_submission_is_repeated_with_its_key(scripted: Scripted, transport: Transport) -> None:
    scripted.answers = [hangs_up, replies(503, {"code": "unavailable", "message": "busy"}), replies(201, {"id": "r-1"})]
    assert transport.post("/api/runs", {"spec": {}}, key="k1") == {"id": "r-1"}
    assert [headers["idempotency-key"] for _, headers, _ in scripted.requests] == ["k1"] * 3
    assert len({body for _, _, body in scripted.requests}) == 1


def test_what_is_not_safe_to_repeat_is_not_repeated(scripted: Scripted, transport: Transport) -> None:
    scripted.answers = [hangs_up, replies(201, {})]
    with pytest.raises(errors.ServerUnreachable, match="cannot be reached"):
        transport.post("/api/runs/r-1/clone", {})
    assert len(scripted.requests) == 1


def test_a_body_in_pieces_is_made_anew_for_each_try(scripted: Scripted, transport: Transport) -> None:
    def takes_it(request: BaseHTTPRequestHandler) -> None:
        while size := int(request.rfile.readline(), 16):
            taken.append(request.rfile.read(size + 2)[:-2])
        replies(200, {})(request)

    taken: list[bytes] = []
    scripted.answers = [hangs_up, takes_it]
    transport.send("/api/blobs", lambda: iter([b"one", b"two"]))
    assert taken == [b"one", b"two"]


def test_nobody_there_is_said_at_once(scripted: Scripted) -> None:
    scripted.close()
    started = time.monotonic()
    with pytest.raises(errors.ServerUnreachable) as caught:
        Transport(lambda: Endpoint(url=scripted.url)).get("/api/info")
    assert scripted.url in caught.value.message
    assert "windlass up" in (caught.value.hint or "")
    assert time.monotonic() - started < 2


def test_following_goes_on_where_the_connection_broke(scripted: Scripted, transport: Transport) -> None:
    gaps: list[bool] = []
    scripted.answers = [
        streams(("log", "a1", 1), ("log", "a2", 2), rest="event: log\nid: a3\ndata: 3\n"),  # the last is cut off
        replies(503, {"code": "unavailable", "message": "starting"}),
        streams(("log", "a3", 3), ("end", "a4", {"state": "succeeded"})),
    ]
    found = list(transport.follow("/stream", {"tail": 5}, patience_s=30, on_gap=gaps.append))
    assert [event.data for event in found] == [1, 2, 3, {"state": "succeeded"}]
    assert [headers.get("last-event-id") for _, headers, _ in scripted.requests] == [None, "a2", "a2"]
    assert gaps == [True, False]


def test_following_a_server_that_moved(scripted: Scripted) -> None:
    other = Scripted()
    try:
        scripted.answers = [streams(("log", "1", 1))]
        other.answers = [streams(("end", "2", 2))]
        urls = iter([scripted.url, other.url])
        found = list(Transport(lambda: Endpoint(url=next(urls))).follow("/stream", patience_s=30))
    finally:
        other.close()
    assert [event.data for event in found] == [1, 2]


def test_following_gives_up_after_its_patience(scripted: Scripted, transport: Transport) -> None:
    scripted.answers = [streams(("log", "1", 1)), *[hangs_up] * 100]
    with pytest.raises(errors.ServerUnreachable):
        list(transport.follow("/stream", patience_s=0.3))


def test_following_what_is_not_there(scripted: Scripted, transport: Transport) -> None:
    scripted.answers = [replies(404, {"code": "not_found", "message": "there is no run 'x'"})]
    with pytest.raises(errors.NotFound):
        list(transport.follow("/stream", patience_s=30))


def test_following_stops_at_the_deadline_in_silence(scripted: Scripted, transport: Transport) -> None:
    over = threading.Event()

    def says_nothing(request: BaseHTTPRequestHandler) -> None:
        streams(("run", "1", {}))(request)
        request.wfile.flush()
        over.wait(30)

    scripted.answers = [says_nothing]
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        list(transport.follow("/stream", patience_s=30, deadline=started + 0.3))
    over.set()
    assert 0.25 < time.monotonic() - started < 10


def test_events_are_read_as_the_standard_says() -> None:
    text = ': ping\n\nevent: log\r\nid: 7\r\ndata: {"a":\r\ndata: 1}\r\n\r\ndata:2\n\nevent: cut\ndata: 3\n'
    # In pieces of every size, since a network cuts where it likes; U+2028 is no line end here.
    for size in (1, 2, 5, 1000):
        data = (text + '\ndata: "\u2028"\n\n').encode()
        chunks = [data[start : start + size] for start in range(0, len(data), size)]
        assert list(parse_events(split_lines(chunks))) == [
            ServerEvent(kind="log", data={"a": 1}, id="7"),
            ServerEvent(kind="message", data=2, id=None),
            ServerEvent(kind="cut", data=3, id=None),
            ServerEvent(kind="message", data="\u2028", id=None),
        ]
