"""Ranges of files, and their names on the way up and down."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from windlass.api.downloads import decide_range
from windlass.api.mlflow.filenames import attachment, media_type, safe_name, safe_path
from windlass.core.errors import InvalidInput


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (None, (0, 10)),
        ("bytes=0-0", (0, 1)),
        ("bytes=2-5", (2, 6)),
        ("BYTES=2-", (2, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-30", (0, 10)),
        ("bytes=5-100", (5, 10)),
        ("bytes=10-", None),
        ("bytes=-0", None),
        ("bytes=5-2", (0, 10)),
        ("bytes=-", (0, 10)),
        ("bytes=0-1,3-4", (0, 10)),
        ("items=0-1", (0, 10)),
    ],
)
def test_the_range_that_is_meant(asked: str | None, found: tuple[int, int] | None) -> None:
    assert decide_range(asked, 10) == found


def test_an_empty_file_has_no_ranges() -> None:
    assert decide_range(None, 0) == (0, 0)
    assert decide_range("bytes=0-", 0) is None
    assert decide_range("bytes=-1", 0) is None


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("a/b.txt", "a/b.txt"),
        ("", ""),
        ("a%20b", "a b"),
        ("50% off", "50% off"),
        ("a..b/c", "a..b/c"),
        ("a\x07", "a%07"),
    ],
)
def test_paths_that_stay_inside(given: str, path: str) -> None:
    assert safe_path(given) == path


@pytest.mark.parametrize(
    "given", ["..", "../x", "a/../../b", "/etc/passwd", "C:\\x", "C:/x", "\\\\host\\x", "file:///etc"]
)
@pytest.mark.parametrize("layers", [0, 1, 2, 5])
def test_paths_that_lead_elsewhere(given: str, layers: int) -> None:
    for _ in range(layers):
        given = quote(given, safe="").replace(".", "%2E")
    with pytest.raises(InvalidInput, match="Invalid path"):
        safe_path(given)


def test_more_layers_than_anybody_needs_and_fragments() -> None:
    for given in ("%" + "25" * 12 + "2e", "a#b", "a%23b"):
        with pytest.raises(InvalidInput, match="Invalid path"):
            safe_path(given)


def test_the_last_part_of_anybodys_path() -> None:
    assert [safe_name(given) for given in ("x", "/home/me/x", "C:\\me\\x", "a%2Fx")] == ["x"] * 4
    for given in ("", "a/", "..", "a%5C..", "a/.."):
        with pytest.raises(InvalidInput, match="Invalid path"):
            safe_name(given)


def test_kinds_of_files() -> None:
    kinds = {
        "a.yaml": "text/plain",
        "MLmodel": "text/plain",
        "x.MLmodel": "text/plain",
        "a.png": "image/png",
        "a.unheard": "application/octet-stream",
        ".hidden": "application/octet-stream",
        "a.tar.gz": "application/x-tar",
    }
    assert {name: media_type(name) for name in kinds} == kinds


def test_names_in_headers() -> None:
    assert attachment("a.txt") == "attachment; filename=a.txt"
    assert attachment('a "b".txt') == 'attachment; filename="a \\"b\\".txt"'
    assert attachment("é.txt") == "attachment; filename=e.txt; filename*=UTF-8''%C3%A9.txt"
    assert attachment("日本") == "attachment; filename=download; filename*=UTF-8''%E6%97%A5%E6%9C%AC"
