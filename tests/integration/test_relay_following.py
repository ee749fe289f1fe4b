"""Following runs whose nodes are elsewhere: as soon and as exactly as those of this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.away import Away, await_that, away
from windlass.core.resources import NodeShare, Placement
from windlass.engines.remote.observing import stored_logs
from windlass.runs import store

SOON_S = 1.5  # far above what it takes (0.2 s), for machines that have other things to do


@pytest.fixture
def nodes(tmp_path: Path, database_url: str) -> Iterator[Away]:
    with away(tmp_path, database_url) as found:
        yield found


def record(nodes: Away, attempt: str) -> None:
    """As the controller does when it places a run and its engine tells where the logs are."""
    placement = Placement(engine="away", shares=(NodeShare(node="n0", cpus=1.0, memory_bytes=0),))
    with nodes.db.write() as tx:
        run = store.load_run(tx, nodes.run_id)
        assert run is not None
        assert store.insert_attempt(tx, run, placement, now=0.0) == attempt
        store.update_attempt(tx, attempt, log_dirs=list(stored_logs(attempt, 1)))


def test_lines_are_seen_soon_after_they_are_printed(nodes: Away) -> None:
    script = "import time\nfor step in range(40):\n    print('step', step, flush=True); time.sleep(0.05)"
    attempt = nodes.prepare("python", "-c", script)
    record(nodes, attempt)
    nodes.start(attempt)
    seen: list[tuple[str, float]] = []
    with nodes.server.client() as client, client.stream("GET", f"/api/runs/{nodes.run_id}/logs?follow=true") as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                data = json.loads(line[6:])
                seen.append((data["text"], time.time() - data["at"]))
            if len(seen) == 40:
                break
    assert [text for text, _ in seen] == [f"step {step}" for step in range(40)]
    delays = sorted(delay for _, delay in seen)
    assert delays[len(delays) // 2] < SOON_S, delays


def test_pages_and_tails_of_logs_that_were_sent(nodes: Away) -> None:
    attempt = nodes.prepare("python", "-c", "import sys\nfor i in range(50): print(i)\nprint('bad', file=sys.stderr)")
    record(nodes, attempt)
    assert nodes.start(attempt).wait(40) == 0
    with nodes.server.client() as client:
        url = f"/api/runs/{nodes.run_id}/logs"
        first = client.get(url, params={"limit": 30}).json()
        rest = client.get(url, params={"after": first["next_cursor"]}).json()
        assert len(first["lines"]) + len(rest["lines"]) == 51
        tail = client.get(url, params={"tail": 3, "stream": "stdout", "rank": 0, "attempt": 1}).json()
        assert {line["text"] for line in tail["lines"]} <= {"47", "48", "49"}
        refused = client.get(url, params={"rank": 5})
        assert (refused.status_code, refused.json()["code"]) == (404, "not_found"), refused.text


def test_points_of_a_node_elsewhere_are_part_of_the_record(nodes: Away) -> None:
    script = "import windlass.job as job\nfor step in range(100): job.log(step=step, loss=1 / (step + 1))"
    attempt = nodes.prepare("python", "-c", script)
    record(nodes, attempt)
    assert nodes.start(attempt).wait(40) == 0, nodes.describe()
    await_that(lambda: nodes.report(attempt).outcome is not None)
    with nodes.server.client() as client:
        (series,) = client.get(f"/api/runs/{nodes.run_id}/metrics").json()["series"]
    assert (series["name"], series["steps"]) == ("loss", list(range(100)))
