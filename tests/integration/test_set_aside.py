"""A run whose GPU breaks goes on on another node, by itself, and its record says why and at what cost."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.local_runs import INTERPRETER_PATH, wait_for
from windlass.client import Client
from windlass.testing.servers import running_server

BROKEN = """
import time
from windlass import job
for step in range(3 if job.attempt == 1 else 8):
    job.log(step, loss=1.0)
    time.sleep(0.01)
if job.attempt == 1:
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
"""


def test_a_broken_gpu_leads_to_another_node(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    two_nodes = {"WINDLASS_ENGINES": json.dumps({"local": {"type": "local", "nodes": 2}}), "PATH": INTERPRETER_PATH}
    with (
        running_server(tmp_path / "home", environ=two_nodes) as server,
        Client(url=server.url, token=server.token, home=tmp_path / "home") as client,
    ):
        wait_for(lambda: len(client.cluster().nodes) == 2, "both nodes")
        spec = {"command": "python broken.py", "code": None, "workdir": str(tmp_path), "retry": {"backoff": 0}}
        run = client.submit(spec)
        assert run.wait(timeout=60).state == "succeeded"
        [[first], [second]] = [attempt.nodes for attempt in run.attempts()]
        assert first != second
        [aside] = client.cluster().set_aside
        assert (aside.node, aside.run_id, aside.times) == (first, run.id, 1)
        assert "uncorrectable ECC error" in aside.reason
        events = {event.kind: event for event in run.events()}
        assert events["set_aside"].data["node"] == first
        back = events["recovered"].data
        assert (back["level"], back["step"], back["steps_lost"]) == (3, 2, 3)
        assert client.give_back(first).node == first
