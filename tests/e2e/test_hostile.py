"""Things that go wrong in ordinary life: a clear outcome each time, and a server that goes on answering."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.crashing import Persistent
from windlass.agent import kernel
from windlass.testing.servers import ServerProcess, end_processes_of, running_server, start_server

PATH = os.environ["PATH"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("hostile") / "home") as server:
        yield server


@pytest.fixture
def user(server: ServerProcess) -> Iterator[Persistent]:
    """Afterwards the server must be as healthy as before."""
    user = Persistent(home=server.home, fault="", server=server)
    yield user
    assert user.json("GET", "/health") == {
        "status": "ok",
        "version": user.json("GET", "/api/info")["version"],
        "controller": "active",
    }
    assert user.json("GET", "/api/cluster")["running"] == 0
    assert user.crashes == 0


def run(user: Persistent, command: Any, **spec: Any) -> dict[str, Any]:
    body = {"spec": {"command": command, "resources": {"cpus": 0.1}, **spec}, "origin": {"search_path": PATH}}
    run_id = user.json("POST", "/api/runs", json=body)["id"]
    return user.until_over(run_id)


def lines(user: Persistent, run_id: str, **query: Any) -> list[dict[str, Any]]:
    found, after = [], None
    while True:
        params = {**query, "limit": 10_000, **({"after": after} if after else {})}
        page = user.json("GET", f"/api/runs/{run_id}/logs", params=params)
        if not page["lines"]:
            return found
        found += page["lines"]
        after = page["next_cursor"]


def test_command_not_found(user: Persistent) -> None:
    done = run(user, ["pyhton3", "train.py"])
    assert (done["state"], done["exit"]["reason"], done["exit_code"]) == ("failed", "launch_failed", 127)
    assert "pyhton3" in done["exit"]["message"]
    assert "python3" in done["exit"]["message"]
    assert done["attempts"] == 1


def test_missing_interpreter(user: Persistent, tmp_path: Path) -> None:
    script = tmp_path / "job"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    done = run(user, [str(script)])
    assert (done["state"], done["exit"]["reason"]) == ("failed", "launch_failed")
    assert "/no/such/interpreter" in done["exit"]["message"]


def test_not_executable(user: Persistent, tmp_path: Path) -> None:
    script = tmp_path / "job"
    script.write_text("#!/bin/sh\n")
    done = run(user, [str(script)])
    assert (done["exit"]["reason"], done["exit_code"]) == ("launch_failed", 126)


def test_missing_script_names_the_nearest(user: Persistent, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    done = run(user, [sys.executable, "trian.py"], code=None, workdir=str(tmp_path))
    assert done["state"] == "failed"
    assert "train.py" in done["exit"]["message"]


def test_missing_workdir(user: Persistent) -> None:
    done = run(user, ["true"], code=None, workdir="/no/such/folder")
    assert (done["state"], done["exit"]["reason"]) == ("failed", "launch_failed")
    assert "/no/such/folder" in done["exit"]["message"]


def test_what_can_never_fit_is_refused(user: Persistent) -> None:
    before = user.json("GET", "/api/runs")["runs"]
    response = user.request("POST", "/api/runs", json={"spec": {"command": "true", "resources": {"gpus": 64}}})
    assert (response.status_code, response.json()["code"]) == (422, "cannot_fit")
    assert "64" in response.json()["message"]
    assert user.json("GET", "/api/runs")["runs"] == before


def test_output_that_is_not_utf8(user: Persistent) -> None:
    done = run(user, [sys.executable, "-c", r"import os; os.write(1, b'caf\xe9 \xff\xfe\n')"])
    assert done["state"] == "succeeded"
    assert [line["text"] for line in lines(user, done["id"])] == ["caf\ufffd \ufffd\ufffd"]


def test_a_line_of_10_megabytes(user: Persistent, server: ServerProcess) -> None:
    before = server.rss_bytes()
    done = run(user, [sys.executable, "-c", "import sys; sys.stdout.write('x' * 10_000_000 + '\\n'); print('end')"])
    assert done["state"] == "succeeded"
    found = lines(user, done["id"])
    assert sum(len(line["text"]) for line in found[:-1]) == 10_000_000
    assert all(line["partial"] for line in found[:-2])
    assert found[-1]["text"] == "end"
    assert server.rss_bytes() - before < 100e6


def test_100_000_lines_a_second(user: Persistent) -> None:
    script = (
        "import sys, time\n"
        "began = time.monotonic()\n"
        "for second in range(3):\n"
        "    for n in range(1000):\n"
        "        sys.stdout.write(''.join(f'line {second * 100000 + n * 100 + k}\\n' for k in range(100)))\n"
        "    time.sleep(max(0, began + second + 1 - time.monotonic()))\n"
    )
    done = run(user, [sys.executable, "-c", script])
    assert done["state"] == "succeeded"
    texts = [line["text"] for line in lines(user, done["id"])]
    assert len(texts) == 300_000
    assert texts == [f"line {n}" for n in range(300_000)]


def test_secrets_show_up_nowhere(user: Persistent, server: ServerProcess) -> None:
    secret = "correct-horse-battery-staple"
    body = {
        "spec": {
            "command": "echo got ${#TOKEN}; echo $TOKEN".replace("${#", "$${#"),
            "secrets": ["TOKEN"],
            "resources": {"cpus": 0.1},
        },
        "secrets": {"TOKEN": secret},
        "origin": {"search_path": PATH},
    }
    run_id = user.json("POST", "/api/runs", json=body)["id"]
    done = user.until_over(run_id)
    assert done["state"] == "succeeded"
    assert [line["text"] for line in lines(user, run_id)] == [f"got {len(secret)}", "***"]
    for path in ("", "/events", "/attempts", "/why"):
        assert secret not in user.request("GET", f"/api/runs/{run_id}{path}").text
    assert secret not in server.log.read_text()
    for file in server.home.rglob("*"):
        if file.is_file() and not file.is_socket():
            assert secret.encode() not in file.read_bytes(), file


def test_a_killed_supervisor_leaves_nothing_behind(user: Persistent) -> None:
    spec = {"command": "sleep 321 & sleep 322", "resources": {"cpus": 0.1}, "retry": {"max": 0}}
    run_id = user.submit(spec, f"supervisor-{time.time()}")
    user.until(run_id, lambda run: run["state"] == "running")
    folder = user.home / "runs" / run_id / "attempts" / "1" / "node-0"
    status = supervisor_status(folder)
    os.kill(status["pid"], 9)
    done = user.until_over(run_id)
    assert (done["state"], done["exit"]["reason"]) == ("failed", "lost")
    assert [pid for pid in kernel.all_pids() if kernel.has_mark(pid, f"{run_id}.1")] == []


def test_a_killed_rank(user: Persistent) -> None:
    spec = {
        "command": [sys.executable, "-c", "import time; time.sleep(600)"],
        "nproc": 2,
        "resources": {"cpus": 0.1},
        "retry": {"max": 0},
    }
    run_id = user.submit(spec, f"rank-{time.time()}")
    user.until(run_id, lambda run: run["state"] == "running")
    folder = user.home / "runs" / run_id / "attempts" / "1" / "node-0"
    ranks = supervisor_status(folder)["ranks"]
    os.kill(ranks[1]["pid"], 9)
    done = user.until_over(run_id)
    exit = done["exit"]
    assert (done["state"], exit["reason"], exit["signal"], exit["rank"]) == ("failed", "signal", 9, 1)
    assert done["exit_code"] == 137
    assert not kernel.is_alive(ranks[0]["pid"], ranks[0]["pid_start"])


def test_the_same_traceback_twice_ends_it(user: Persistent) -> None:
    command = [sys.executable, "-c", "import os\nraise ValueError(f'bad thing {os.getpid()}')"]
    done = run(user, command, retry={"max": 5, "backoff": "0.05s"})
    assert (done["state"], done["attempts"]) == ("failed", 2)
    assert "ValueError" in done["exit"]["message"]
    why = user.json("GET", f"/api/runs/{done['id']}/why")
    assert "same failure twice" in why["summary"]


def supervisor_status(folder: Path) -> dict[str, Any]:
    status: dict[str, Any] = json.loads((folder / "status.json").read_text())
    return status


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        if os.environ.get("CI"):
            pytest.fail(f"a small disk cannot be mounted: {mounted.stderr}")
        pytest.skip(f"needs root to mount a small disk: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill_up(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"\0" * 65536):
            pass
    assert shutil.disk_usage(path.parent).free == 0


def test_a_full_disk(tiny_disk: Path) -> None:
    home = tiny_disk / "home"
    server = start_server(home)
    user = Persistent(home=home, fault="", server=server)
    filler = tiny_disk / "filler"
    try:
        run_id = user.submit({"command": "while [ ! -e go ]; do sleep 0.05; done; echo over", "grace": 1}, "full")
        user.until(run_id, lambda run: run["state"] == "running")
        fill_up(filler)
        response = user.request("POST", "/api/runs", json={"spec": {"command": "true", "env": {"BIG": "x" * 90_000}}})
        assert (response.status_code, response.json()["code"]) == (507, "storage_full")
        assert user.json("GET", "/health")["status"] == "ok"
        filler.unlink()
        (home / "runs" / run_id / "work" / "go").touch()
        assert user.until_over(run_id)["state"] == "succeeded"
        again = user.submit({"command": "true"}, "again")
        assert user.until_over(again)["state"] == "succeeded"
        assert user.crashes == 0
    finally:
        user.close()
        end_processes_of(home)


def test_a_client_that_goes_away_in_the_middle(user: Persistent, server: ServerProcess) -> None:
    run_id = user.submit(
        {"command": "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.05; done", "resources": {"cpus": 0.1}}, "gone"
    )
    with server.client() as client, client.stream("GET", f"/api/runs/{run_id}/logs?follow=true") as stream:
        next(stream.iter_lines())
    assert user.until_over(run_id)["state"] == "succeeded"
