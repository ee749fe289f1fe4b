"""Bodies of requests, no longer than the server can hold for everybody who asks, packed or not."""

from __future__ import annotations

import zlib

from fastapi import Request

from windlass.core.errors import InvalidInput, TooLarge

MOST_BYTES = 32 * 1024 * 1024
# For gzip, for zlib, and for clients that leave the header of the latter out.
_FORMS = {"gzip": (16 + zlib.MAX_WBITS,), "deflate": (zlib.MAX_WBITS, -zlib.MAX_WBITS)}


async def body_of(request: Request, most: int = MOST_BYTES) -> bytes:
    """Raises TooLarge before it has taken in more than that."""
    said = request.headers.get("Content-Length", "")
    if said.isascii() and said.isdecimal() and (len(said) > 18 or int(said) > most):
        raise _too_large(most)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise _too_large(most)
        parts.append(part)
    return b"".join(parts)


def unpacked(body: bytes, encoding: str, most: int = MOST_BYTES) -> bytes:
    """Raises InvalidInput, and TooLarge for what is small only as long as it is packed."""
    if encoding in ("", "identity"):
        return body
    if encoding not in _FORMS:
        raise InvalidInput(f"Unsupported Content-Encoding: {encoding}")
    for form in _FORMS[encoding]:
        try:
            return _inflated(body, form, most)
        except zlib.error:
            continue
    raise InvalidInput(f"Failed to decompress {encoding} payload")


def _inflated(body: bytes, form: int, most: int) -> bytes:
    """A body of several packed pieces is what they hold, one after the other. Raises zlib.error."""
    parts: list[bytes] = []
    size = 0
    while True:
        unpacking = zlib.decompressobj(form)
        parts.append(unpacking.decompress(body, most - size + 1))
        size += len(parts[-1])
        if size > most:
            raise _too_large(most)
        if not unpacking.eof:
            raise zlib.error("it ends too early")
        body = unpacking.unused_data.lstrip(b"\0")
        if not body:
            return b"".join(parts)


def _too_large(most: int) -> TooLarge:
    return TooLarge(f"a body of a request has at most {most:,} bytes", hint="send it in several")
