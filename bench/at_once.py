"""A server that answers at once, with what it was told to: what a client costs by itself, and so the most that any
server could gain.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator


class AtOnce:
    """`answers`: JSON by a part of the path; an empty object for all others."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: dict[str, bytes] = {}

    def answer(self, head: bytes) -> bytes:
        path = head.partition(b"\r\n")[0].decode("latin-1")
        body = next((body for part, body in self.answers.items() if part in path), b"{}")
        return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


class _Protocol(asyncio.Protocol):
    def __init__(self, server: AtOnce) -> None:
        self._server = server
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._held += data
        head, end, rest = self._held.partition(b"\r\n\r\n")
        if end and len(rest) >= (size := _size(head)):
            self._held = rest[size:]
            self._transport.write(self._server.answer(head))


def _size(head: bytes) -> int:
    _, there, rest = head.lower().partition(b"content-length:")
    return int(rest.partition(b"\r")[0]) if there else 0


@contextlib.contextmanager
def answering_at_once(port: int) -> Iterator[AtOnce]:
    """By a thread of this process, which has nothing else to do meanwhile."""
    server = AtOnce(f"http://127.0.0.1:{port}")
    loop = asyncio.new_event_loop()
    listening = loop.run_until_complete(loop.create_server(lambda: _Protocol(server), "127.0.0.1", port))
    thread = threading.Thread(target=loop.run_forever, name="at-once")
    thread.start()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        listening.close()
        loop.close()
