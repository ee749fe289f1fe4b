"""HTTP as the agent speaks it: whatever a server or a proxy sends is read whole, or said to be broken."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from windlass.agent.http1 import BadAnswer, Connection, parse_address


@contextlib.contextmanager
def answering(*answers: bytes) -> Iterator[tuple[Connection, list[bytes]]]:
    """A server that says this to one caller, an answer a request, and hangs up; and what it heard."""
    heard: list[bytes] = []

    def serve() -> None:
        caller, _ = listener.accept()
        with caller:
            for answer in answers:
                heard.append(_request(caller))
                caller.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve)
        server.start()
        connection = Connection("127.0.0.1", listener.getsockname()[1], timeout_s=30.0)
        try:
            yield connection, heard
        finally:
            connection.close()
            server.join()


def _request(caller: socket.socket) -> bytes:
    said = b""
    while b"\r\n\r\n" not in said:
        said += caller.recv(1000)
    head, _, body = said.partition(b"\r\n\r\n")
    if b"chunked" in head:
        while not body.endswith(b"0\r\n\r\n"):
            body += caller.recv(1000)
    elif b"Content-Length: " in head:
        length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
        while len(body) < length:
            body += caller.recv(1000)
    return head + b"\r\n\r\n" + body


WHOLE = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\ncontent-length:5\r\nX: y\r\n\r\nhello and more than that",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;a=b\r\nllo\r\n0\r\nX: y\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.0 200 OK\r\n\r\nhello",
    b"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello",
]


@pytest.mark.parametrize("answer", WHOLE)
@pytest.mark.parametrize("size", [-1, 1, 2, 100])
def test_bodies_of_every_kind_whole_and_in_pieces(answer: bytes, size: int) -> None:
    with answering(answer) as (connection, _):
        connection.request("GET", "/", None, {})
        response = connection.getresponse()
        assert response.status == 200
        pieces = list(iter(lambda: response.read(size), b""))
    assert b"".join(pieces) == b"hello"
    assert all(len(piece) == size for piece in pieces[:-1])


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nhello\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
)
def test_an_answer_that_is_not_whole_is_no_answer(answer: bytes) -> None:
    with answering(answer) as (connection, _):
        connection.request("GET", "/", None, {})
        with pytest.raises((BadAnswer, ConnectionError)):
            connection.getresponse().read()


def test_a_connection_is_kept_and_bodies_are_sent_by_length_or_in_chunks() -> None:
    answers = [b"HTTP/1.1 204 No Content\r\n\r\n", WHOLE[2], WHOLE[0]]
    with answering(*answers) as (connection, heard):
        connection.request("POST", "/a", b"12345", {"X-Y": "z"})
        assert (first := connection.getresponse()).status == 204
        assert first.read() == b""
        connection.request("PUT", "/b", iter([b"123", b"", b"45"]), {})
        assert connection.getresponse().read() == b"hello"
        connection.request("POST", "/c", None, {})
        last = connection.getresponse()
        assert (last.getheader("content-LENGTH"), last.read()) == ("5", b"hello")
    assert heard[0].startswith(b"POST /a HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nX-Y: z\r\nContent-Length: 5\r\n\r\n12345" in heard[0]
    assert heard[1].endswith(b"Transfer-Encoding: chunked\r\n\r\n3\r\n123\r\n2\r\n45\r\n0\r\n\r\n")
    assert heard[2].endswith(b"\r\nContent-Length: 0\r\n\r\n")


def test_a_header_cannot_bring_another_one_along() -> None:
    with answering() as (connection, _), pytest.raises(ValueError, match="line break"):
        connection.request("GET", "/", None, {"X": "a\r\nY: b"})


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("http://windlass:8470", (False, "windlass", 8470, "")),
        ("https://windlass.example/a/b/", (True, "windlass.example", 443, "/a/b")),
        ("HTTP://user:secret@10.0.0.1", (False, "10.0.0.1", 80, "")),
        ("http://[fd00::1]:81/x", (False, "fd00::1", 81, "/x")),
        ("https://[::1]", (True, "::1", 443, "")),
    ],
)
def test_a_url_says_where_it_leads(url: str, where: tuple[bool, str, int, str]) -> None:
    assert parse_address(url) == where


@pytest.mark.parametrize("url", ["windlass:8470", "ftp://windlass", "http://", "http://:80", "http://host:port"])
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="no URL"):
        parse_address(url)
