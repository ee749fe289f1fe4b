from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.agent.layout import rank_log
from windlass.agent.ranklog import timestamp
from windlass.core.errors import InvalidInput
from windlass.tracking.logs import LogCursor, LogFilter, LogRecord, find_logs, read_page, seek_tail

START = 1_700_000_000.0


def record(at: float, text: str | bytes, flag: str = "o") -> bytes:
    body = text if isinstance(text, bytes) else text.encode()
    return f"{timestamp(START + at)} {flag} ".encode() + body + b"\n"


def write(folder: Path, rank: int, *records: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / rank_log(rank)).open("ab") as file:
        file.write(b"".join(records))


def texts(page: list[LogRecord]) -> list[str]:
    return [line.text for line in page]


def read_all(folder: Path, cursor: LogCursor | None = None, *, limit: int = 1_000) -> list[LogRecord]:
    return read_page(find_logs({1: [str(folder)]}), cursor or LogCursor(), limit=limit)


def test_ranks_are_merged_by_time(tmp_path: Path) -> None:
    write(tmp_path, 0, record(1, "a"), record(4, "d"))
    write(tmp_path, 1, record(2, "b"), record(3, "c", "e"))
    page = read_all(tmp_path)
    assert texts(page) == ["a", "b", "c", "d"]
    assert [(line.rank, line.stream) for line in page] == [(0, "stdout"), (1, "stdout"), (1, "stderr"), (0, "stdout")]
    assert page[0].at == pytest.approx(START + 1, abs=1e-5)


def test_attempts_come_one_after_another(tmp_path: Path) -> None:
    write(tmp_path / "1", 0, record(100, "late first"))
    write(tmp_path / "2", 0, record(1, "early second"))
    files = find_logs({2: [str(tmp_path / "2")], 1: [str(tmp_path / "1")]})
    assert texts(read_page(files, LogCursor(), limit=9)) == ["late first", "early second"]


def test_ranks_of_several_nodes_are_found_and_can_be_chosen(tmp_path: Path) -> None:
    write(tmp_path / "n0", 0, record(1, "a"))
    write(tmp_path / "n1", 10, record(2, "b"))
    write(tmp_path / "n1", 9, record(3, "c"))
    (tmp_path / "n1" / "supervisor.log").write_text("not a rank's\n")
    folders = [str(tmp_path / "n0"), str(tmp_path / "n1"), str(tmp_path / "gone")]
    assert [file.rank for file in find_logs({1: folders})] == [0, 9, 10]
    assert [file.rank for file in find_logs({1: folders}, rank=10)] == [10]
    assert find_logs({1: folders}, rank=3) == []


def test_one_stream_only(tmp_path: Path) -> None:
    write(tmp_path, 0, record(1, "out"), record(2, "err", "e"), record(3, "out again"))
    cursor = LogCursor()
    files = find_logs({1: [str(tmp_path)]})
    assert texts(read_page(files, cursor, limit=9, wanted=LogFilter(stream="stderr"))) == ["err"]
    assert read_page(files, cursor, limit=9, wanted=LogFilter(stream="stderr")) == []


def test_lines_that_are_not_finished_say_so(tmp_path: Path) -> None:
    write(tmp_path, 0, record(1, "50%", "o+"), record(2, "100%"))
    assert [(line.text, line.partial) for line in read_all(tmp_path)] == [("50%", True), ("100%", False)]


def test_a_record_is_read_only_when_it_is_whole(tmp_path: Path) -> None:
    whole, torn = record(1, "whole"), record(2, "torn")
    write(tmp_path, 0, whole, torn[:-4])
    cursor = LogCursor()
    assert texts(read_all(tmp_path, cursor)) == ["whole"]
    write(tmp_path, 0, torn[-4:])
    assert texts(read_all(tmp_path, cursor)) == ["torn"]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (record(1, b"\xff\xfe caf\xc3\xa9"), "\ufffd\ufffd café"),
        (record(1, ""), ""),
        (record(1, "  spaces  "), "  spaces  "),
        (record(1, "carriage\rreturn\x0bvt\x85"), "carriage\rreturn\x0bvt\x85"),
        (b"\n", ""),
        (b"no stamp at all\n", "at all"),
        (b"\x00\x00\x00\n", ""),
    ],
)
def test_whatever_a_line_holds_it_is_one_line(tmp_path: Path, line: bytes, text: str) -> None:
    write(tmp_path, 0, line, record(2, "next"))
    assert texts(read_all(tmp_path)) == [text, "next"]


def test_a_file_that_goes_away_is_no_error(tmp_path: Path) -> None:
    write(tmp_path, 0, record(1, "a"))
    files = find_logs({1: [str(tmp_path)]})
    (tmp_path / rank_log(0)).unlink()
    assert read_page(files, LogCursor(), limit=9) == []
    assert seek_tail(files, 5).positions == {"1.0": 0}


def test_lines_longer_than_a_read_are_kept_whole(tmp_path: Path) -> None:
    long = "x" * (3 << 20)
    write(tmp_path, 0, record(1, long), record(2, "after"))
    assert [len(text) for text in texts(read_all(tmp_path))] == [len(long), 5]


@pytest.mark.parametrize("lines", [0, 1, 3, 100])
def test_a_tail_is_the_last_lines_of_all_ranks_together(tmp_path: Path, lines: int) -> None:
    for rank in range(3):
        write(tmp_path, rank, *(record(10 * number + rank, f"{rank}.{number}") for number in range(5)))
    files = find_logs({1: [str(tmp_path)]})
    everything = texts(read_page(files, LogCursor(), limit=99))
    assert texts(read_page(files, seek_tail(files, lines), limit=99)) == (everything[-lines:] if lines else [])


def test_a_tail_of_a_large_file_is_right(tmp_path: Path) -> None:
    write(tmp_path, 0, *(record(number, f"{number} " + "x" * 500) for number in range(1_000)))
    files = find_logs({1: [str(tmp_path)]})
    page = read_page(files, seek_tail(files, 400), limit=9_999)
    assert [text.split()[0] for text in texts(page)] == [str(number) for number in range(600, 1_000)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(
    lines=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.sampled_from("oe")), max_size=25),
    limits=st.lists(st.integers(1, 4), min_size=1, max_size=40),
    appended=st.integers(0, 25),
)
def test_pages_lose_and_repeat_nothing_wherever_they_end(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[int, int, str]], limits: list[int], appended: int
) -> None:
    """Also when a part of the lines is written only after reading has begun, and cursors travel as text."""
    folder = tmp_path_factory.mktemp("logs")
    clock = dict.fromkeys(range(3), 0)
    written: list[tuple[int, bytes]] = []
    for number, (rank, later, flag) in enumerate(lines):
        clock[rank] += later
        written.append((rank, record(clock[rank], str(number), flag)))
    seen: list[LogRecord] = []
    text: str | None = None
    for now_there, reads in ((written[:appended], limits), (written[appended:], [*limits, 1_000])):
        for rank, line in now_there:
            write(folder, rank, line)
        for limit in reads:
            cursor = LogCursor.decode(text)
            page = read_page(find_logs({1: [str(folder)]}), cursor, limit=limit)
            assert len(page) <= limit
            seen += page
            text = cursor.encode()
    by_rank = {rank: [line.text for line in seen if line.rank == rank] for rank in range(3)}
    assert by_rank == {
        rank: [str(number) for number, (of, _, _) in enumerate(lines) if of == rank] for rank in range(3)
    }


@given(st.dictionaries(st.from_regex(r"[1-9][0-9]?\.[0-9]{1,2}", fullmatch=True), st.integers(0, 2**62 - 1)))
def test_a_cursor_travels_as_text(positions: dict[str, int]) -> None:
    assert LogCursor.decode(LogCursor(positions).encode()).positions == positions


def encoded(data: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(data).encode()).decode()


@pytest.mark.parametrize(
    "text",
    [
        "x", "!!!!", "ü", encoded([]), encoded(None), encoded({"1.0": "x"}), encoded({"1.0": None}),
        encoded({"1.0": -1}), encoded({"1.0": 2**70}), encoded({"1.0": 1e400}), "AAAA", encoded(5),
        base64.urlsafe_b64encode(b"[" * 50_000).decode(), encoded({"1.0": [1]}),
    ],
)  # fmt: skip
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="cursor"):
        LogCursor.decode(text)
