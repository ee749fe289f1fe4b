"""Lines of a log that were written down before their ends had come, as prompts and progress bars are: records that go
on in the next one of their stream. Pure.
"""

from __future__ import annotations

_LONGEST_BYTES = 1 << 20  # of a line; the rest of a longer one is not kept
_MARKS = (b" o+ ", b" e+ ")


def text_at(record: bytes) -> int:
    """Where the text begins, after time and stream."""
    return record.find(b" ", record.find(b" ") + 1) + 1


def stream_of(record: bytes) -> bytes:
    at = record.find(b" ") + 1
    return record[at : at + 1]


def goes_on(record: bytes) -> bool:
    at = text_at(record)
    return record[at - 2 : at - 1] == b"+"


def may_go_on(records: bytes) -> bool:
    """False: none of them does."""
    return any(mark in records for mark in _MARKS)


class Unfinished:
    """What there is of such lines, by stream, and of which of them a reader has been told."""

    def __init__(self) -> None:
        self.lines: dict[bytes, bytes] = {}
        self.told: set[bytes] = set()

    def __bool__(self) -> bool:
        return bool(self.lines)

    def add(self, record: bytes) -> bytes:
        """The text of its line up to here."""
        stream, text = stream_of(record), record[text_at(record) :]
        if before := self.lines.pop(stream, b""):
            text = _newest(before + text)
        if goes_on(record):
            self.lines[stream] = text[:_LONGEST_BYTES]
        else:
            self.told.discard(stream)
        return text

    def note_told(self, stream: bytes) -> None:
        if stream in self.lines:
            self.told.add(stream)


def _newest(text: bytes) -> bytes:
    """Of a progress bar only the newest state counts, so that a long one does not grow."""
    if b"\r" not in text:
        return text
    parts = [part for part in text.split(b"\r") if part]
    return b"\r" + (parts[-1] if parts else b"")
