"""Relays against a real server: from hello to the acknowledged outcome."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.away import Away, away


@pytest.fixture
def nodes(tmp_path: Path, database_url: str) -> Iterator[Away]:
    with away(tmp_path, database_url) as found:
        yield found


def test_a_node_runs_its_plan_and_reports_the_end(nodes: Away) -> None:
    attempt = nodes.prepare("python", "-c", "print('hello from afar')")
    relay = nodes.start(attempt)
    assert relay.wait(40) == 0, nodes.describe()
    assert nodes.outcome(attempt)["reason"] == "completed"
    assert nodes.texts(attempt) == ["hello from afar"]
    assert not list((nodes.folder / "tmp").iterdir())
