"""A rank's log file: both of its streams, a timestamp on every line, nothing lost but what the disk refuses, and what
is over a limit: then the beginning and the end are kept, and a line between them says so.

A record is `<UTC time> <stream> <text>`; the stream is `o` or `e`, with a `+` when the line does not end here: the
next record of the same stream goes on with it, and after the last record it means that no newline was written.
"""

from __future__ import annotations

import os
import time

from .masking import Mask

LONGEST_RECORD_BYTES = 64 * 1024
PARTIAL_AFTER_S = 0.2
TAIL_BYTES = 16 * 1024
KEPT_END_BYTES = 256 * 1024  # of what is over the limit


def timestamp(now: float) -> str:
    """`2026-11-15T03:55:42.123456Z`."""
    whole, micros = divmod(int(now * 1_000_000), 1_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + ".%06dZ" % micros


class Stream:
    """One of the two streams: cuts bytes into records and remembers an unfinished line."""

    def __init__(self, letter: bytes, mask: Mask) -> None:
        self._letter = letter
        self._mask = mask
        self._pending = b""
        self.pending_since: float | None = None
        self.tail = b""
        self.heard: bytearray | None = None  # while somebody listens: all that comes
        self.is_open = False  # the last record goes on in the next

    def feed(self, data: bytes, now: float) -> bytes:
        """The records that `data` completes. Work is per chunk, not per line: ranks can be very talkative."""
        if self.heard is not None:
            self.heard += data
        joined = self._pending + data if self._pending else data
        complete, newline, rest = joined.rpartition(b"\n")
        records = b""
        if newline:
            records = self._lines(self._mask.apply(complete), now)
            self.pending_since = None
        if len(rest) > LONGEST_RECORD_BYTES:
            part, rest = self._without_held_back(rest)
            records += self._partial(part, now)
        self._pending = rest
        if not rest:
            self.pending_since = None
        elif self.pending_since is None:
            self.pending_since = now
        return records

    def flush(self, now: float, *, final: bool = False) -> bytes:
        """The unfinished line as far as it is known, so that prompts and progress bars show."""
        part, rest = (self._pending, b"") if final else self._without_held_back(self._pending)
        self._pending = rest
        self.pending_since = None  # what is held back waits for more to come
        return self._partial(part, now) if part else b""

    def _without_held_back(self, data: bytes) -> tuple[bytes, bytes]:
        cut = len(data) - self._mask.held_back(data)
        return data[:cut], data[cut:]

    def end_line(self, now: float) -> bytes:
        """A record that ends an unfinished line; nothing where there is none."""
        if not self.is_open:
            return b""
        self.is_open = False
        return timestamp(now).encode() + b" " + self._letter + b" \n"

    def _lines(self, text: bytes, now: float) -> bytes:
        self.is_open = False
        self._remember(text + b"\n")
        prefix = timestamp(now).encode() + b" " + self._letter + b" "
        if len(text) > LONGEST_RECORD_BYTES and max(map(len, text.split(b"\n"))) > LONGEST_RECORD_BYTES:
            return b"".join(self._long_line(line, now) for line in text.split(b"\n"))
        return prefix + text.replace(b"\n", b"\n" + prefix) + b"\n"

    def _long_line(self, line: bytes, now: float) -> bytes:
        head = timestamp(now).encode() + b" " + self._letter
        last = max(0, (len(line) - 1) // LONGEST_RECORD_BYTES) * LONGEST_RECORD_BYTES
        pieces = [
            head + b"+ " + line[start : start + LONGEST_RECORD_BYTES] + b"\n"
            for start in range(0, last, LONGEST_RECORD_BYTES)
        ]
        return b"".join(pieces) + head + b" " + line[last:] + b"\n"

    def _partial(self, part: bytes, now: float) -> bytes:
        masked = self._mask.apply(part)
        self.is_open = True
        self._remember(masked)
        head = timestamp(now).encode() + b" " + self._letter + b"+ "
        return b"".join(
            head + masked[start : start + LONGEST_RECORD_BYTES] + b"\n"
            for start in range(0, len(masked), LONGEST_RECORD_BYTES)
        )

    def _remember(self, text: bytes) -> None:
        self.tail = (self.tail + text[-TAIL_BYTES:])[-TAIL_BYTES:]


class Ending:
    """The last records of many, about so many bytes of them."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept = bytearray()
        self._left_out = 0

    def add(self, records: bytes) -> None:
        self._kept += records
        if len(self._kept) > 2 * self._most_bytes:
            # Whole records only: what is kept begins after the end of one.
            cut = self._kept.find(b"\n", len(self._kept) - self._most_bytes - 1) + 1
            self._left_out += cut
            del self._kept[:cut]

    def taken(self) -> tuple[int, bytes]:
        """How many bytes were left out, and those that come after them."""
        return self._left_out, bytes(self._kept)


def _size(count: int) -> str:
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "KB")):
        if count >= unit:
            return "%.4g %s" % (count / unit, name)
    return "%d bytes" % count


def _own_line(text: str, now: float) -> bytes:
    return ("%s e [windlass] %s\n" % (timestamp(now), text)).encode("utf-8", "replace")


class RankLog:
    """Writes the records of both streams. A disk that refuses costs output, never the run."""

    def __init__(self, path: str, mask: Mask, limit_bytes: int | None = None) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._limit_bytes = limit_bytes
        self._size = os.fstat(self._fd).st_size if limit_bytes is not None else 0
        self._over: Ending | None = None
        self.out = Stream(b"o", mask)
        self.err = Stream(b"e", mask)
        self.dropped_bytes = 0
        self._gap_bytes = 0
        self._torn = False
        self._refusal = ""

    def feed(self, stream: Stream, data: bytes, now: float) -> None:
        self._write(stream.feed(data, now), now)

    def flush_partials(self, now: float) -> None:
        for stream in (self.out, self.err):
            if stream.pending_since is not None and now - stream.pending_since >= PARTIAL_AFTER_S:
                self._write(stream.flush(now), now)

    def next_flush_at(self) -> float | None:
        waiting = [s.pending_since for s in (self.out, self.err) if s.pending_since is not None]
        return min(waiting) + PARTIAL_AFTER_S if waiting else None

    def finish(self, stream: Stream, now: float) -> None:
        self._write(stream.flush(now, final=True), now)

    def note(self, text: str, now: float) -> None:
        """A line of our own between those of two processes of the rank."""
        ended = self.out.end_line(now) + self.err.end_line(now)
        self._write(ended + _own_line(text, now), now)

    def close(self) -> None:
        if self._over is not None:
            left_out, end = self._over.taken()
            if left_out:
                end = _own_line("%s of output were left out here" % _size(left_out), time.time()) + end
            if end:
                self._put(end, time.time())
        os.close(self._fd)

    def _write(self, records: bytes, now: float) -> None:
        if not records:
            return
        if self._limit_bytes is not None:
            if self._over is None and self._size + len(records) > self._limit_bytes:
                self._over = Ending(KEPT_END_BYTES)
                told = (
                    "the output is over its limit of %s (logs.limit): from here on only its end is kept, "
                    "and written when the rank has ended"
                )
                self._put(_own_line(told % _size(self._limit_bytes), now), now)
            if self._over is not None:
                self._over.add(records)
                return
            self._size += len(records)
        self._put(records, now)

    def _put(self, records: bytes, now: float) -> None:
        if self._gap_bytes:
            marker = "%s e [windlass] %s of output were dropped here: %s\n" % (
                timestamp(now),
                _size(self._gap_bytes),
                self._refusal,
            )
            marker_bytes = (b"\n" if self._torn else b"") + marker.encode()
            written = self._try(marker_bytes)
            if written < len(marker_bytes):
                self._torn = self._torn or written > 0
                self._drop(len(records))
                return
            self._gap_bytes = 0
            self._torn = False
        written = self._try(records)
        if written < len(records):
            self._torn = self._torn or (written > 0 and records[written - 1 : written] != b"\n")
            self._drop(len(records) - written)

    def _drop(self, count: int) -> None:
        self._gap_bytes += count
        self.dropped_bytes += count

    def _try(self, data: bytes) -> int:
        """How much of `data` the disk took."""
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:] if written else data)
        except OSError as error:
            self._refusal = os.strerror(error.errno or 0)
        return written
