from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.agent.masking import Mask
from windlass.agent.ranklog import KEPT_END_BYTES, LONGEST_RECORD_BYTES, RankLog, Stream, timestamp

NOW = 1_794_715_342.123456
RECORD = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z ([oe])(\+?) (.*)", re.DOTALL)
PIECES = st.lists(st.binary(max_size=40) | st.sampled_from([b"\n", b"\r", b"pass", b"word", b"password"]))


def put_together(records: bytes) -> bytes:
    found = b""
    for line in records.split(b"\n")[:-1]:
        match = RECORD.fullmatch(line)
        assert match, line
        assert len(match[3]) <= LONGEST_RECORD_BYTES
        found += match[3] + (b"" if match[2] else b"\n")
    return found


def test_the_time_is_utc_to_the_microsecond() -> None:
    assert timestamp(NOW) == "2026-11-15T04:02:22.123456Z"
    assert timestamp(0.0) == "1970-01-01T00:00:00.000000Z"


def test_lines_and_the_rest_of_one() -> None:
    stream = Stream(b"o", Mask([]))
    assert stream.feed(b"one\n\ntwo", NOW).splitlines() == [
        b"2026-11-15T04:02:22.123456Z o one",
        b"2026-11-15T04:02:22.123456Z o ",
    ]
    waiting = [stream.pending_since]
    assert stream.flush(NOW + 0.2).endswith(b" o+ two\n")
    assert [*waiting, stream.pending_since] == [NOW, None]
    assert stream.feed(b" and a half\n", NOW + 1).endswith(b" o  and a half\n")


@given(PIECES, st.integers(0, 3))
def test_nothing_is_lost_however_it_is_cut(pieces: list[bytes], flush_every: int) -> None:
    stream = Stream(b"e", Mask([]))
    records = b""
    for number, piece in enumerate(pieces):
        records += stream.feed(piece, NOW)
        if flush_every and number % flush_every == 0:
            records += stream.flush(NOW)
    records += stream.flush(NOW, final=True)
    assert put_together(records) == b"".join(pieces)


@given(PIECES, st.integers(0, 3))
def test_a_secret_never_shows_however_it_is_cut(pieces: list[bytes], flush_every: int) -> None:
    stream = Stream(b"o", Mask(["password"]))
    records = b""
    for number, piece in enumerate(pieces):
        records += stream.feed(piece, NOW)
        if flush_every and number % flush_every == 0:
            records += stream.flush(NOW)
    records += stream.flush(NOW, final=True)
    whole = b"".join(pieces)
    assert b"password" not in records
    assert b"password" not in put_together(records)
    if b"password" not in whole:
        assert put_together(records) == whole


def test_long_lines_take_bounded_memory() -> None:
    stream = Stream(b"o", Mask([]))
    records = b""
    for _ in range(100):
        records += stream.feed(b"x" * 65536, NOW)
        assert len(stream._pending) <= LONGEST_RECORD_BYTES
    records += stream.feed(b"\n", NOW)
    assert put_together(records) == b"x" * 6553600 + b"\n"


def test_a_long_line_that_comes_at_once_is_cut_too() -> None:
    stream = Stream(b"o", Mask([]))
    data = b"short\n" + b"y" * (2 * LONGEST_RECORD_BYTES) + b"\n" + b"z" * (LONGEST_RECORD_BYTES + 1) + b"\nend\n"
    assert put_together(stream.feed(data, NOW)) == data


def test_short_secrets_and_lines_of_long_ones() -> None:
    mask = Mask(["abc", "-----BEGIN KEY-----\nMIIEabcdefgh\nxy\n-----END KEY-----", "token-1"])
    assert mask.apply(b"abc token-1 MIIEabcdefgh xy") == b"abc *** *** xy"


def test_the_longer_of_two_secrets_is_masked_whole() -> None:
    assert Mask(["secret", "secret-and-more"]).apply(b"secret-and-more secret") == b"*** ***"


def test_a_disk_that_refuses_costs_output_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rank-0.log"
    log = RankLog(str(path), Mask([]))
    log.feed(log.out, b"before\n", NOW)
    write = os.write
    room = 10

    def full(fd: int, data: bytes) -> int:
        nonlocal room
        if room <= 0:
            raise OSError(errno.ENOSPC, "full")
        written = write(fd, data[:room])
        room -= written
        return written

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        log.feed(log.out, b"torn\n", NOW)
        log.feed(log.err, b"dropped\n", NOW)
    log.feed(log.out, b"after\n", NOW)
    log.close()
    lines = path.read_text().splitlines()
    assert [line[28:] for line in (lines[0], lines[-1])] == ["o before", "o after"]
    assert lines[1] == "2026-11-15"
    assert "e [windlass] " in lines[2]
    assert lines[2].endswith("bytes of output were dropped here: No space left on device")
    assert len(lines) == 4
    assert log.dropped_bytes == len("2026-11-15T04:02:22.123456Z o torn\n") - 10 + 38


def test_over_its_limit_a_log_keeps_beginning_and_end_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    log = RankLog(str(path), Mask([]), limit_bytes=10_000)
    lines = [b"line %06d %s\n" % (number, b"x" * 80) for number in range(20_000)]
    for line in lines:
        log.feed(log.out, line, NOW)
    log.finish(log.out, NOW)
    assert path.stat().st_size < 12_000  # while it runs
    log.close()
    texts = [line.split(b" ", 2)[2] + b"\n" for line in path.read_bytes().splitlines()]
    marks = [number for number, text in enumerate(texts) if text.startswith(b"[windlass]")]
    assert len(marks) == 2
    beginning, end = texts[: marks[0]], texts[marks[1] + 1 :]
    assert beginning == lines[: len(beginning)]
    assert end == lines[-len(end) :]
    assert b"over its limit of 10 KB" in texts[marks[0]]
    skipped = lines[len(beginning) : len(lines) - len(end)]
    left_out = sum(len(line) + len(timestamp(NOW)) + 3 for line in skipped)
    assert texts[marks[1]].startswith(b"[windlass] %.4g MB of output were left out here" % (left_out / 1e6))
    assert KEPT_END_BYTES <= sum(map(len, end)) + 31 * len(end) <= 2 * KEPT_END_BYTES


def test_a_log_within_its_limit_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    log = RankLog(str(path), Mask([]), limit_bytes=10_000)
    log.feed(log.out, b"a\nb\n", NOW)
    log.close()
    assert put_together(path.read_bytes()) == b"a\nb\n"


def test_what_was_written_before_counts(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"x" * 9_999 + b"\n")
    log = RankLog(str(path), Mask([]), limit_bytes=10_000)
    log.feed(log.out, b"again\n", NOW)
    log.close()
    assert b"over its limit" in path.read_bytes()
    assert path.read_bytes().endswith(b"again\n")
