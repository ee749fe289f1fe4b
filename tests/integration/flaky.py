"""A proxy before an HTTP server that answers every N-th request with 503, every other time after it was done."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(slots=True, kw_only=True)
class Trouble:
    """`every`: None is none at all. `count`: of answers that were trouble."""

    address: str
    every: int | None
    count: int = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def _pass_on(self) -> None:
        number = next(self.server.numbers)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        every = self.server.trouble.every
        fails = every is not None and number % every == 0
        if every is not None and number % (2 * every) == 0:
            self._answer(503, {}, b"")
            return
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.upstream, timeout=60)
        try:
            # Its headers as they are: the signature covers them, the name of the host too.
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                upstream.putheader(name, value)
            upstream.endheaders(body)
            answer = upstream.getresponse()
            content = answer.read()
            headers = dict(answer.getheaders())
        finally:
            upstream.close()
        if fails:
            self._answer(503, {}, b"")
        else:
            self._answer(answer.status, headers, content)

    do_GET = do_PUT = do_DELETE = do_HEAD = do_POST = _pass_on  # noqa: N815

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        if status >= 500:
            self.server.trouble.count += 1
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: Any) -> None:
        """Clients that are killed are part of the tests."""


@contextlib.contextmanager
def failing_proxy(port: int, *, every: int) -> Iterator[Trouble]:
    server: Any = _Server(("127.0.0.1", 0), _Handler)
    server.upstream, server.numbers = port, itertools.count(1)
    server.trouble = Trouble(address=f"http://127.0.0.1:{server.server_address[1]}", every=every)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server.trouble
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
