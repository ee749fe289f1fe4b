"""Reading of server-sent events. Pure: bytes in, events out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class ServerEvent(NamedTuple):
    kind: str
    data: Any
    id: str | None


def parse_events(lines: Iterable[str]) -> Iterator[ServerEvent]:
    """Events of complete lines (without their ends). An event that was cut off before its blank line is dropped."""
    kind, data, event_id = "message", list[str](), None
    for line in lines:
        if not line:
            if data:
                yield ServerEvent(kind=kind, data=json.loads("\n".join(data)), id=event_id)
            kind, data, event_id = "message", [], None
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name == "event":
            kind = value
        elif name == "id":
            event_id = value


def split_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Lines end at LF or CRLF only: log text may hold other characters that `str.splitlines` would split at."""
    rest = bytearray()
    for chunk in chunks:
        rest += chunk
        if b"\n" not in chunk:
            continue
        *lines, last = rest.split(b"\n")
        rest = bytearray(last)
        for line in lines:
            yield line.removesuffix(b"\r").decode()
