"""How far a run is, and what its machine does, told by a live server of a program that knows nothing of Windlass."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import windlass
from windlass.testing import servers

PRINTS = """
import os, time
print("Epoch 1/3, step 40/200", flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.ServerProcess]:
    with servers.running_server(tmp_path_factory.mktemp("progress") / "home") as server:
        yield server


@pytest.fixture
def client(server: servers.ServerProcess) -> Iterator[windlass.Client]:
    with windlass.Client(url=server.url, token=server.token, home=server.home) as client:
        yield client


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_what_a_program_prints_is_its_progress(
    server: servers.ServerProcess, client: windlass.Client, tmp_path: Path
) -> None:
    (tmp_path / "prints.py").write_text(PRINTS)
    run = client.submit(script="prints.py", code=tmp_path)
    eventually(lambda: client.get(run.id).view.progress is not None, "no progress was told")
    told = client.get(run.id).view.progress
    assert told is not None
    assert (told.step, told.total) == (40, 200)
    eventually(lambda: "nodes" in (client.get(run.id).view.usage or {}), "no sample of the node")
    [node] = (client.get(run.id).view.usage or {})["nodes"]
    assert node["node"] == 0
    assert 0 < node["disk_used_percent"] <= 100
    (client.home / "runs" / run.id / "work" / "go").touch()
    assert run.wait(timeout=60).state == "succeeded"
    assert client.get(run.id).metrics() == {}  # those of machines are shown apart
    with server.client() as http:
        found = http.get(f"/api/runs/{run.id}/metrics", params={"name": "system/disk_used_percent"}).raise_for_status()
    assert found.json()["series"][0]["values"][0] > 0
