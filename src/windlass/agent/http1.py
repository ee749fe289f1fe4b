"""HTTP/1.1 as our own two ends speak it: one request at a time over a connection that may be kept. Loaded in a tenth of
the time of the standard library's client, which brings along all that is known about e-mail; users wait for it twice
in every launch. Sends bodies of a known length or in chunks, reads both kinds.
"""

from __future__ import annotations

import socket
from typing import Any, Iterable, Mapping, Union

_LONGEST_LINE = 65536
_MOST_HEADERS = 200
_BODILESS = (204, 304)


def parse_address(url: str) -> tuple[bool, str, int, str]:
    """Whether it is secure, host, port, and path without a slash at its end. Raises ValueError for what is not like
    http://host:port/path. `urllib.parse` would say it too, once it is loaded."""
    scheme, colon, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    host, bracket, port = authority.rpartition("@")[2].rpartition("]")
    if bracket:
        host, port = host[1:], port[1:]
    else:
        host, _, port = port.partition(":")
    if scheme.lower() not in ("http", "https") or not colon or not host or not (port or "1").isdigit():
        raise ValueError("%r is no URL of a server" % url)
    secure = scheme.lower() == "https"
    return secure, host, int(port or (443 if secure else 80)), ("/" + path).rstrip("/")


class BadAnswer(Exception):
    """What came is no HTTP, or ended too early."""


class Response:
    """`read` gives the body, whole or in pieces. The connection can be used again when all of it was read."""

    def __init__(self, file: Any, method: str) -> None:
        self._file = file
        while True:
            self.status, self.reason = _read_status(file)
            self._headers = _read_headers(file)
            if self.status >= 200:
                break
        self.keeps = self._headers.get("connection", "").lower() != "close"
        self._chunked = self._headers.get("transfer-encoding", "").lower() == "chunked"
        self._left: int | None = None  # of the body or of the chunk; None: until the connection ends
        if method == "HEAD" or self.status in _BODILESS:
            self._left, self._chunked = 0, False
        elif self._chunked:
            self._left = _read_chunk_size(file)
        elif "content-length" in self._headers:
            self._left = _number(self._headers["content-length"], 10)
        else:
            self.keeps = False

    def getheader(self, name: str) -> str | None:
        return self._headers.get(name.lower())

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes, fewer only at the end; all that is left if negative. Raises BadAnswer or OSError."""
        pieces = []
        while size != 0:
            piece = self._read_some(size)
            if not piece:
                break
            pieces.append(piece)
            size -= len(piece) if size > 0 else 0
        return b"".join(pieces)

    def _read_some(self, size: int) -> bytes:
        if self._left is None:
            return bytes(self._file.read(size))
        if self._left == 0:
            return b""
        wanted = self._left if size < 0 else min(size, self._left)
        piece = bytes(self._file.read(wanted))
        if len(piece) < wanted:
            raise BadAnswer("the answer broke off")
        self._left -= wanted
        if self._left == 0 and self._chunked:
            _read_line(self._file)  # what ends a chunk
            self._left = _read_chunk_size(self._file)
        return piece


class Connection:
    def __init__(self, host: str, port: int, *, secure: bool = False, timeout_s: float) -> None:
        self._host, self._port, self._secure, self._timeout_s = host, port, secure, timeout_s
        self._socket: Any = None
        self._file: Any = None
        self._method = ""

    def connect(self) -> None:
        # As bytes: a name that is text is taken for an international one, and the tables of those are long to load.
        host: Any = self._host.encode() if self._host.isascii() else self._host
        opened = socket.create_connection((host, self._port), self._timeout_s)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._secure:
            import ssl  # long to load, and mostly not needed

            opened = ssl.create_default_context().wrap_socket(opened, server_hostname=self._host)
        self._socket, self._file = opened, opened.makefile("rb")

    def set_timeout(self, timeout_s: float) -> None:
        self._socket.settimeout(timeout_s)

    def request(
        self, method: str, path: str, body: Union[bytes, Iterable[bytes], None], headers: Mapping[str, str]
    ) -> None:
        """Send it; bodies that are no bytes go in chunks. Raises OSError."""
        if self._socket is None:
            self.connect()
        self._method = method
        host = "[%s]" % self._host if ":" in self._host else self._host
        lines = ["%s %s HTTP/1.1" % (method, path), "Host: %s:%d" % (host, self._port), "Accept-Encoding: identity"]
        lines += ["%s: %s" % item for item in headers.items()]
        whole, chunks = (bytes(body), None) if isinstance(body, (bytes, bytearray)) else (None, body)
        if whole is not None:
            lines.append("Content-Length: %d" % len(whole))
        elif chunks is not None:
            lines.append("Transfer-Encoding: chunked")
        elif method in ("POST", "PUT", "PATCH"):
            lines.append("Content-Length: 0")
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("a request's line has a line break in it")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        self._socket.sendall(head + (whole or b""))
        if chunks is not None:
            for chunk in chunks:
                if chunk:
                    self._socket.sendall(b"%x\r\n" % len(chunk) + bytes(chunk) + b"\r\n")
            self._socket.sendall(b"0\r\n\r\n")

    def getresponse(self) -> Response:
        """Raises BadAnswer or OSError."""
        return Response(self._file, self._method)

    def close(self) -> None:
        if self._socket is not None:
            self._file.close()
            self._socket.close()
            self._socket = self._file = None


def _read_status(file: Any) -> tuple[int, str]:
    line = _read_line(file)
    version, _, rest = line.partition(" ")
    code, _, reason = rest.partition(" ")
    if not version.startswith("HTTP/1.") or not (code.isascii() and code.isdigit()):
        raise BadAnswer("this is no answer of a web server: %r" % line[:80])
    return int(code), reason


def _read_headers(file: Any) -> dict[str, str]:
    headers: dict[str, str] = {}
    for _ in range(_MOST_HEADERS):
        line = _read_line(file)
        if not line:
            return headers
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    raise BadAnswer("an answer has more than %d headers" % _MOST_HEADERS)


def _read_chunk_size(file: Any) -> int:
    """Of the next chunk; 0, and all read, if there is none."""
    size = _number(_read_line(file).partition(";")[0].strip(), 16)
    if size == 0:
        _read_headers(file)
    return size


def _number(text: str, base: int) -> int:
    try:
        number = int(text, base)
    except ValueError:
        number = -1
    if number < 0:
        raise BadAnswer("%r is no length" % text[:80])
    return number


def _read_line(file: Any) -> str:
    line = bytes(file.readline(_LONGEST_LINE + 1))
    if not line.endswith(b"\n"):
        raise BadAnswer("the connection was closed without an answer" if not line else "the answer broke off")
    return line.rstrip(b"\r\n").decode("latin-1")
