"""Names of artifacts, and where their URIs point."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.artifacts.locations import Elsewhere, Folder, Location, Ours, locate
from windlass.artifacts.paths import ancestors, clean_path, file_path
from windlass.artifacts.types import Keeping
from windlass.core.errors import InvalidInput


@pytest.mark.parametrize(
    ("given", "path"),
    [("", ""), ("/", ""), ("a", "a"), ("./a//b/", "a/b"), ("a/.hidden", "a/.hidden"), ("a/..b", "a/..b")],
)
def test_a_path_is_written_in_one_way(given: str, path: str) -> None:
    assert clean_path(given) == path


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("..", "leads outside"),
        ("a/../b", "leads outside"),
        ("a\0b", "zero byte"),
        ("\ud800", "no text"),
        ("é" * 251, "more than 500 bytes"),
        ("/".join(["x" * 400] * 6), "at most 2000"),
    ],
)
def test_paths_that_cannot_be_kept(given: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        clean_path(given)


def test_a_file_has_a_name() -> None:
    assert file_path("/a/b") == "a/b"
    for given in ("", "/", "a/", "./"):
        with pytest.raises(InvalidInput, match="is a folder"):
            file_path(given)


def test_ancestors() -> None:
    assert ancestors("a/b/c") == ["a", "a/b"]
    assert ancestors("a") == []


@pytest.mark.parametrize(
    ("uri", "where"),
    [
        ("mlflow-artifacts:/0/r/artifacts", Ours("0/r/artifacts")),
        ("mlflow-artifacts://host:5000/0/r", Ours("0/r")),
        ("mlflow-artifacts:", Ours("")),
        ("http://host/api/2.0/mlflow-artifacts/artifacts/0/r", Ours("0/r")),
        ("https://host/prefix/api/2.0/mlflow-artifacts/artifacts", Ours("")),
        ("http://host/elsewhere/0", Elsewhere("http://host/elsewhere/0")),
        ("file:///data/0/a%20b", Folder(Path("/data/0/a b"))),
        ("file://otherhost/data", Elsewhere("file://otherhost/data")),
        ("/data/0", Folder(Path("/data/0"))),
        ("s3://bucket/0", Elsewhere("s3://bucket/0")),
        ("relative/path", Elsewhere("relative/path")),
    ],
)
def test_where_a_uri_points(uri: str, where: Location) -> None:
    assert locate(uri) == where


def test_what_is_on_its_way_has_time() -> None:
    assert Keeping().blobs_before(100_000.0) == 100_000.0 - 86_400
    with pytest.raises(ValueError, match="an hour at least"):
        Keeping(blobs_s=60)
