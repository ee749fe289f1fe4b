"""What a node still has to tell the server: the bytes its files have grown by, and the small files that changed.

The folder itself is the spool. Only positions are kept in memory, and the server knows them too: whatever is sent
twice, it cuts.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Mapping, NamedTuple

from . import layout
from .files import read_if_whole, read_json

_MOST_BYTES = 2 << 20  # of files in one report
_LEAST_BYTES = 64 << 10  # what every proxy lets through
_MOST_FILES = 500
# A piece of a spool without a line's end that is this long is sent as it is: it is no point, and the server drops it.
_LONGEST_POINT_BYTES = 1 << 20
# Programs may make files of any name here. What no rank can have is left: a server that refuses it would refuse all.
_HIGHEST_RANK = 999_999
_SMALL = {
    "status": layout.STATUS,
    "usage": layout.USAGE,
    "environment": layout.ENVIRONMENT,
    "notice": layout.NOTICE,
}
_URGENT = ("status", "notice")
# What a run ran with is found out beside it; one that is over sooner waits so long for it to become part of the record.
_ENVIRONMENT_PATIENCE_S = 1.0

Version = tuple[int, int, int]


class Draft(NamedTuple):
    """A report that was not sent yet, and what will be known as sent once it was."""

    body: bytes
    versions: Mapping[str, Version]
    names: tuple[str, ...]
    is_last: bool  # it tells the outcome
    has_more: bool  # it could not hold everything


class Outbox:
    def __init__(self, node_dir: str, incarnation: str) -> None:
        self._node_dir = node_dir
        self._incarnation = incarnation
        self._most_bytes = _MOST_BYTES
        self._positions: dict[str, int] = {}
        self._versions: dict[str, Version] = {}

    def is_urgent(self) -> bool:
        """Whether there is something that the server's decisions depend on."""
        return self._outcome() is not None or any(self._changed(name) is not None for name in _URGENT)

    def has_news(self) -> bool:
        return any(size > self._positions.get(name, 0) for name, size in self._sizes().items())

    def draft(self) -> Draft:
        """The next report. Whether there is an outcome is looked at first: no rank writes anything after it."""
        outcome = self._outcome()
        head: dict[str, Any] = {"incarnation": self._incarnation}
        versions = {}
        for name, file_name in _SMALL.items():
            version = self._changed(name)
            if version is None:
                continue
            versions[name] = version
            content = read_if_whole(os.path.join(self._node_dir, file_name))
            if content is not None:  # what cannot be read keeps nothing else back
                head[name] = content
        files, parts, has_more = self._grown()
        head["files"] = files
        is_last = outcome is not None and not has_more
        if is_last:
            head["outcome"] = outcome
        body = b"".join([json.dumps(head, separators=(",", ":")).encode(), b"\n", *parts])
        return Draft(body, versions, tuple(file["name"] for file in files), is_last, has_more)

    def settle(self, draft: Draft, positions: Mapping[str, int]) -> None:
        """The server has it, up to `positions`: from there on it wants the next."""
        self._versions.update(draft.versions)
        self._positions.update({name: int(positions[name]) for name in draft.names if name in positions})

    def shrink(self, draft: Draft) -> bool:
        """It was too large for somebody on the way to the server: send less at once from now on. False if there is
        nothing to be gained by that."""
        wanted = max(_LEAST_BYTES, min(self._most_bytes, len(draft.body)) // 2)
        if len(draft.body) <= _LEAST_BYTES or wanted >= self._most_bytes:
            return False
        self._most_bytes = wanted
        return True

    def _outcome(self) -> dict[str, Any] | None:
        """The end, once it is to be told."""
        path = os.path.join(self._node_dir, layout.OUTCOME)
        outcome = read_json(path)
        if outcome is None or outcome.get("started_at") is None:
            return outcome
        is_known = os.path.exists(os.path.join(self._node_dir, layout.ENVIRONMENT))
        # Away from it in either direction: clocks are set back, and file systems have clocks of their own.
        return outcome if is_known or abs(time.time() - os.stat(path).st_mtime) > _ENVIRONMENT_PATIENCE_S else None

    def _changed(self, name: str) -> Version | None:
        try:
            found = os.stat(os.path.join(self._node_dir, _SMALL[name]))
        except FileNotFoundError:
            return None
        version = (found.st_ino, found.st_mtime_ns, found.st_size)
        return version if version != self._versions.get(name) else None

    def _sizes(self) -> dict[str, int]:
        sizes = {}
        with os.scandir(self._node_dir) as entries:
            for entry in entries:
                name = entry.name
                if (name in layout.NODE_LOGS or _is_log(name) or _is_spool(name)) and entry.is_file():
                    sizes[name] = entry.stat().st_size
        return sizes

    def _grown(self) -> tuple[list[dict[str, Any]], list[bytes], bool]:
        """(what is sent, its bytes, whether there is more)."""
        files: list[dict[str, Any]] = []
        parts: list[bytes] = []
        room, has_more = self._most_bytes, False
        for name, size in sorted(self._sizes().items()):
            position = self._positions.get(name, 0)
            if size <= position:
                continue
            if len(files) >= _MOST_FILES:
                return files, parts, True
            data = self._read(name, position, min(room, size - position)) if room else b""
            is_short = len(data) < size - position  # for want of room
            if _is_spool(name):
                data = _whole_lines(data) or (self._long_line(name, position) if is_short and not parts else b"")
            # The beginning of a line of a spool waits for its end; it is nothing that is left to send.
            has_more = has_more or (position + len(data) < size and bool(data or (is_short and parts)))
            if data:
                files.append({"name": name, "position": position, "size": len(data)})
                parts.append(data)
                room = max(0, room - len(data))
        return files, parts, has_more

    def _long_line(self, name: str, position: int) -> bytes:
        """The next line of a spool, which may be longer than a report should be."""
        data = self._read(name, position, _LONGEST_POINT_BYTES)
        return _whole_lines(data[: data.find(b"\n") + 1] or data)

    def _read(self, name: str, position: int, count: int) -> bytes:
        with open(os.path.join(self._node_dir, name), "rb") as file:
            file.seek(position)
            return file.read(count)


def _is_log(name: str) -> bool:
    rank = layout.rank_of_log(name)
    return rank is not None and rank <= _HIGHEST_RANK and name == layout.rank_log(rank)


def _is_spool(name: str) -> bool:
    rank = layout.rank_of_spool(name)
    return rank is not None and rank <= _HIGHEST_RANK and name == layout.metrics_spool(rank)


def _whole_lines(data: bytes) -> bytes:
    end = data.rfind(b"\n") + 1
    return data if not end and len(data) >= _LONGEST_POINT_BYTES else data[:end]
