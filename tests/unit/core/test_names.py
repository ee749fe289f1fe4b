"""Suggestions for wrong names."""

from __future__ import annotations

from windlass.core.names import missing, unknown


def test_of_many_options_only_some_are_listed() -> None:
    many = [f"layer{number:03}" for number in range(115)]
    assert unknown("metric", "x", many).endswith("layer019 and 95 more")
    assert "did you mean 'layer110'?" in unknown("metric", "layre110", many)


def test_the_nearest_stands_for_all_others() -> None:
    assert missing("there is no project", "visoin", ["vision", "x"]).endswith("'visoin'; did you mean 'vision'?")
    assert missing("there is no project", "foo", ["vision"]).endswith("'foo'; there are vision")
    assert missing("there is no group", "foo", []) == "there is no group 'foo'"
