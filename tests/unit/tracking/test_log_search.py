"""Lines that are looked for, by pattern and by time."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.tracking.test_logs import START, record, texts, write
from windlass.tracking.logpattern import LogPattern
from windlass.tracking.logs import (
    LogCursor,
    LogFile,
    LogFilter,
    LogRecord,
    Scan,
    find_logs,
    read_page,
    seek_tail,
    seek_time,
)


def grep(text: str, **more: float) -> LogFilter:
    return LogFilter(pattern=LogPattern.parse(text), **more)  # type: ignore[arg-type]


def written(folder: Path, *, lines: int = 5_000, ranks: int = 2) -> list[LogFile]:
    for rank in range(ranks):
        write(
            folder,
            rank,
            *(record(number + rank / 10, f"step {number} of {rank} {'.' * 60}") for number in range(lines)),
        )
    return find_logs({1: [str(folder)]})


def test_only_lines_that_match_are_there_by_time(tmp_path: Path) -> None:
    files = written(tmp_path)
    page = read_page(files, LogCursor(), limit=99, wanted=grep("^step 49[89]9 "))
    assert [text[:14].strip() for text in texts(page)] == [
        f"step {n} of {rank}" for n in (4989, 4999) for rank in (0, 1)
    ]


def test_neither_time_nor_stream_of_a_line_is_searched(tmp_path: Path) -> None:
    files = written(tmp_path, lines=10)
    assert read_page(files, LogCursor(), limit=99, wanted=grep("2023-11")) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(
    wants=st.lists(st.lists(st.booleans(), max_size=12), min_size=1, max_size=3),
    limit=st.integers(1, 5),
    budget=st.integers(1, 400),
)
def test_a_search_in_parts_finds_what_one_does(
    tmp_path_factory: pytest.TempPathFactory, wants: list[list[bool]], limit: int, budget: int
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    for rank, of_rank in enumerate(wants):
        write(folder, rank, *(record(n, f"{'yes' if want else 'no'} {rank}.{n}") for n, want in enumerate(of_rank)))
    files = find_logs({1: [str(folder)]})
    whole = texts(read_page(files, LogCursor(), limit=10**6, wanted=grep("yes")))
    found: list[str] = []
    cursor = LogCursor()
    for _ in range(200):
        scan = Scan(budget)
        page = read_page(files, cursor, limit=limit, wanted=grep("yes"), scan=scan)
        cursor = LogCursor.decode(cursor.encode())
        found += texts(page)
        if not page and not scan.is_over:
            break
    assert sorted(found) == sorted(whole)
    assert len(whole) == sum(map(sum, wants))


def test_the_last_matches_are_found_from_the_end(tmp_path: Path) -> None:
    files = written(tmp_path)
    wanted = grep(r"step \d*00 of 1")
    page = read_page(files, seek_tail(files, 3, wanted), limit=99, wanted=wanted)
    assert [text.split()[1] for text in texts(page)] == ["4700", "4800", "4900"]


@pytest.mark.parametrize("at", [-5.0, 0.0, 0.05, 1_234.5, 4_998.9, 4_999.1, 9_999.0])
def test_a_time_is_found_without_reading_what_is_before(tmp_path: Path, at: float) -> None:
    files = written(tmp_path)
    cursor = seek_time(files, START + at)
    sizes = {file.key: file.content.size() for file in files}
    page = read_page(files, cursor, limit=10**6, wanted=LogFilter(since=START + at))
    assert len(page) == sum(n + rank / 10 >= at for n in range(5_000) for rank in range(2))
    if at > 4_000:
        cursor = seek_time(files, START + at)
        assert all(sizes[key] - place < 250_000 for key, place in cursor.positions.items())


def test_a_search_ends_with_its_time(tmp_path: Path) -> None:
    files = written(tmp_path)
    wanted = LogFilter(since=START + 10, until=START + 12.05)
    page = read_page(files, seek_time(files, START + 10), limit=99, wanted=wanted)
    assert [text.split()[1] for text in texts(page)] == ["10", "10", "11", "11", "12"]


def test_a_search_that_may_look_at_little_gets_on_with_every_page(tmp_path: Path) -> None:
    files = written(tmp_path, lines=20_000)
    cursor, found, pages = LogCursor(), [], 0
    while True:
        scan = Scan(1)
        page = read_page(files, cursor, limit=99, wanted=grep("step 19999 "), scan=scan)
        found += texts(page)
        pages += 1
        if not page and not scan.is_over:
            break
    assert [text[:15] for text in found] == ["step 19999 of 0", "step 19999 of 1"]
    assert pages > 4


@pytest.mark.parametrize(
    ("text", "pattern", "is_found"),
    [
        ("multi\rline\rover  ", "^over", True),
        ("multi\rline\rover  ", "multi", False),
        ("here \x1b[32mgreen\x1b[0m word", "here green w", True),
        ("here \x1b[32mgreen\x1b[0m word", "32", False),
        ("\x1b[2K\x1b[1Amoved \x1b]0;title\x07!", "^moved !", True),
        ("\x1b[2K\x1b[1Amoved \x1b]0;title\x07", "title", False),
        ("x" * 9_000 + "\rend", "^end$", True),
    ],
)
def test_what_a_terminal_shows_is_searched(tmp_path: Path, text: str, pattern: str, is_found: bool) -> None:
    write(tmp_path, 0, record(1, "before"), record(2, text))
    found = texts(read_page(find_logs({1: [str(tmp_path)]}), LogCursor(), limit=9, wanted=grep(pattern)))
    assert found == ([text] if is_found else [])


def in_pieces(folder: Path) -> list[LogFile]:
    """A progress bar that an error runs into, with lines of the other stream between."""
    bar = (record(n, f"\rprogress {n}/30", "e+") for n in range(1, 30))
    write(folder, 0, record(0, "name: ", "o+"), *bar, record(30, "you"), record(31, "ERROR: something", "e"))
    return find_logs({1: [str(folder)]})


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("progress 29.*ERR", ["\rprogress 29/30ERROR: something"]),
        ("ERR", ["\rprogress 29/30ERROR: something"]),
        ("progress 12", []),
        ("^name: you$", ["name: you"]),
        ("you", ["name: you"]),
        ("^ERROR", []),
    ],
)
def test_a_line_that_came_in_pieces_is_searched_as_it_is_shown(tmp_path: Path, pattern: str, found: list[str]) -> None:
    files = in_pieces(tmp_path)
    assert texts(read_page(files, LogCursor(), limit=99, wanted=grep(pattern))) == found
    last = read_page(files, seek_tail(files, 1, grep(pattern)), limit=99, wanted=grep(pattern))
    assert texts(last) == found[-1:]
    cursor = LogCursor({"1.0": in_pieces(tmp_path / "again")[0].content.size() - 40})
    assert texts(read_page(files, cursor, limit=99, wanted=grep(pattern))) in ([], found)


def test_a_reader_that_comes_back_is_told_a_line_that_went_on(tmp_path: Path) -> None:
    cursor, told = LogCursor(), []
    for piece, flag in (("\rstep 1", "o+"), ("\rstep 2", "o+"), (" done", "o"), ("other", "o")):
        write(tmp_path, 0, record(len(told), piece, flag))
        page = read_page(find_logs({1: [str(tmp_path)]}), cursor, limit=9, wanted=grep("step"))
        cursor = LogCursor.decode(cursor.encode())
        told += [(line.text, line.partial) for line in page]
    assert told == [("\rstep 1", True), ("\rstep 2", True), ("\rstep 2 done", False)]


@pytest.mark.parametrize("places", [1, 3, 7])
def test_a_page_that_ends_anywhere_repeats_nothing_of_lines_in_pieces(tmp_path: Path, places: int) -> None:
    write(tmp_path, 0, *(record(n, f"a{n} " if n % 3 else "b ", "oe"[n % 2] + "+" * (n % 5 > 0)) for n in range(40)))
    files = find_logs({1: [str(tmp_path)]})
    whole = read_page(files, LogCursor(), limit=99, wanted=grep("a|b"))
    found: list[LogRecord] = []
    cursor = LogCursor()
    while page := read_page(files, cursor, limit=places, wanted=grep("a|b")):
        found += page
        cursor = LogCursor.decode(cursor.encode())
    assert [line.start for line in found] == [line.start for line in whole]
    assert [line.text.lstrip("\r") for line in found] == [line.text.lstrip("\r") for line in whole]
