from __future__ import annotations

import pytest

from windlass.core.errors import InvalidInput
from windlass.registry import naming


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "Missing value for required parameter 'name'"),
        ("  ", "Missing value for required parameter 'name'"),
        ("a/b", "Names cannot contain '/' or ':'"),
        ("a:b", "Names cannot contain '/' or ':'"),
        ("..", "would resolve to '..'"),
        ("a" * 257, "'name' exceeds the maximum length of 256"),
        ("a\x00b", "cannot be stored"),
    ],
)
def test_names_that_are_refused(name: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        naming.check_name(name)


def test_names_that_are_taken() -> None:
    for name in ("a", "Ünï cödé", "a.b-c d", "a" * 256):
        naming.check_name(name)


def test_aliases() -> None:
    naming.check_new_alias("champion-1_a")
    naming.check_alias("latest")
    for alias, why in [
        ("", "cannot be empty"),
        ("a b", "Invalid alias name: 'a b'"),
        ("Latest", "is reserved"),
        ("v12", "Version alias name 'v12' is reserved"),
        ("a" * 256, "exceeds the maximum length of 255"),
    ]:
        with pytest.raises(InvalidInput, match=why):
            naming.check_new_alias(alias)


def test_tags() -> None:
    naming.check_tag("a key/with: all-of_it.", "x" * 100_000)
    for key, value, why in [
        ("a", "x" * 100_001, "'value' exceeds the maximum length of 100000 characters"),
        ("a" * 251, "x", "'key' exceeds the maximum length of 250 characters"),
        ("a\n", "x", "Names may only contain alphanumerics"),
        ("/a", "x", "would resolve to '/a'"),
        ("mlflow.prompt.text", "x" * 100_001, "Prompt text exceeds max length of 100000 characters"),
    ]:
        with pytest.raises(InvalidInput, match=why):
            naming.check_tag(key, value)


def test_versions_are_numbers() -> None:
    assert naming.read_version("12") == 12
    with pytest.raises(InvalidInput, match="Parameter 'version' must be an integer, got 'one'"):
        naming.read_version("one")
