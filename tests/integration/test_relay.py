"""Relays against a real server: from hello to the acknowledged outcome, and whatever comes in between."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.away import Away, await_that, away, is_gone
from windlass.agent import kernel
from windlass.blobs.snapshots import store_manifest
from windlass.engines.contract import StopKind
from windlass.runs.sealing import KEY_VARIABLE
from windlass.testing.servers import running_server
from windlass.tracking.series import load_history
from windlass.tracking.store import load_summaries

FOREVER = "import time; print('here', flush=True); time.sleep(600)"


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


def test_code_and_secrets_arrive_and_the_token_stays_outside(nodes: Away) -> None:
    script = (
        b"import os; from lib import word as w; print(w, *map(os.environ.get, ['KEY', 'AT', 'WINDLASS_NODE_TOKEN']))"
    )
    blobs = nodes.blobs()
    files = [
        {"path": "main.py", "mode": 0o644, "sha256": blobs.put(script), "size": len(script)},
        {"path": "lib/__init__.py", "mode": 0o644, "sha256": blobs.put(b"word = 'code'\n"), "size": 14},
        {"path": "lib/link.py", "mode": 0o777, "link": "__init__.py", "size": 0},
    ]
    digest, missing = store_manifest(blobs, files)
    assert missing == []
    attempt = nodes.prepare("python", "main.py", secrets={"KEY": "hush hush"}, code_digest=digest)
    assert nodes.start(attempt, environ={"AT": "pod"}).wait(40) == 0, nodes.describe()
    assert nodes.texts(attempt) == ["code *** pod None"]


def test_a_snapshot_that_is_not_there_is_a_failed_launch(nodes: Away) -> None:
    attempt = nodes.prepare("python", "main.py", code_digest="0" * 64)
    assert nodes.start(attempt).wait(40) == 1
    outcome = nodes.outcome(attempt)
    assert outcome["reason"] == "launch_failed"
    assert "there is no blob 000" in outcome["message"]


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [
        ("raise SystemExit(7)", 7, "exit_code"),
        ("import os; os.kill(os.getpid(), 9)", 137, "signal"),
    ],
)
def test_the_exit_code_is_that_of_the_rank(nodes: Away, script: str, code: int, reason: str) -> None:
    attempt = nodes.prepare("python", "-c", script)
    assert nodes.start(attempt).wait(40) == code
    assert nodes.outcome(attempt)["reason"] == reason


def test_a_wish_to_stop_reaches_the_ranks_with_its_grace(nodes: Away) -> None:
    script = (
        "import signal, time\n"
        "def stop(*_):\n"
        "    print('saving', flush=True); time.sleep(0.3); print('saved', flush=True); raise SystemExit\n"
        "signal.signal(signal.SIGTERM, stop); print('here', flush=True); time.sleep(600)"
    )
    attempt = nodes.prepare("python", "-c", script)
    relay = nodes.start(attempt)
    await_that(lambda: nodes.texts(attempt) == ["here"], nodes.describe)
    nodes.book.wish_to_stop(attempt, grace_s=20.0, kind=StopKind.CANCELLED, reason="cancelled on request")
    assert relay.wait(40) != 0
    outcome = nodes.outcome(attempt)
    assert (outcome["reason"], outcome["message"]) == ("cancelled", "cancelled on request")
    assert nodes.texts(attempt) == ["here", "saving", "saved"]


def test_a_node_that_was_not_there_when_it_was_told_to_stop_never_starts(nodes: Away) -> None:
    attempt = nodes.prepare("python", "-c", "print('never')")
    nodes.book.wish_to_stop(attempt, grace_s=5.0, kind=StopKind.PREEMPTED, reason="no longer wanted")
    assert nodes.outcome(attempt)["reason"] == "preempted"
    assert nodes.start(attempt).wait(40) == 143
    assert nodes.texts(attempt) == []


def test_the_ranks_of_a_closed_attempt_are_killed(nodes: Away) -> None:
    attempt = nodes.prepare("python", "-c", FOREVER)
    relay = nodes.start(attempt)
    pids = [rank["pid"] for rank in nodes.running(attempt)["ranks"]]
    nodes.book.close(attempt)
    assert relay.wait(40) == 143
    await_that(lambda: all(map(is_gone, pids)))


def test_a_second_process_for_a_node_is_refused_and_the_first_goes_on(nodes: Away) -> None:
    attempt = nodes.prepare("python", "-c", FOREVER)
    first = nodes.start(attempt)
    nodes.running(attempt)
    assert nodes.start(attempt).wait(40) == 76
    assert first.poll() is None


def test_ranks_die_with_their_relay_and_nobody_takes_its_place(nodes: Away) -> None:
    attempt = nodes.prepare("python", "-c", FOREVER, workers=2)
    relay = nodes.start(attempt)
    status = nodes.running(attempt)
    pids = [status["pid"], *(rank["pid"] for rank in status["ranks"])]
    assert len(pids) == 3
    relay.kill()
    await_that(lambda: all(map(is_gone, pids)))
    assert nodes.start(attempt).wait(40) == 76
    assert nodes.report(attempt).outcome is None


def test_a_supervisor_that_dies_is_lost_and_takes_everything_with_it(nodes: Away) -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    attempt = nodes.prepare("python", "-c", child)
    relay = nodes.start(attempt)
    status = nodes.running(attempt)
    await_that(lambda: bool(kernel.children(status["ranks"][0]["pid"])))
    below = kernel.descendants(status["pid"])
    os.kill(status["pid"], signal.SIGKILL)
    assert relay.wait(40) == 1
    assert nodes.outcome(attempt)["reason"] == "lost"
    assert all(map(is_gone, below))


def test_a_node_that_is_told_to_stop_from_outside_is_preempted(nodes: Away) -> None:
    attempt = nodes.prepare("python", "-c", FOREVER)
    relay = nodes.start(attempt)
    nodes.running(attempt)
    relay.send_signal(signal.SIGTERM)
    assert relay.wait(40) != 0
    assert nodes.outcome(attempt)["reason"] == "preempted"


def test_a_relay_ends_with_the_process_it_belongs_to(nodes: Away) -> None:
    attempt = nodes.prepare("python", "-c", FOREVER)
    with subprocess.Popen([sys.executable, "-c", FOREVER], stdout=subprocess.DEVNULL) as owner:
        relay = nodes.start(attempt, arguments=("--die-with-parent-pid", str(owner.pid)))
        pids = [rank["pid"] for rank in nodes.running(attempt)["ranks"]]
        owner.kill()
    assert relay.wait(40) == 1
    await_that(lambda: all(map(is_gone, pids)))


def test_a_node_works_for_an_ordinary_user_with_one_writable_folder(nodes: Away) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become somebody else")
    home = nodes.folder / "node-home"
    home.mkdir()
    os.chown(home, 65534, 65534)
    for folder in (nodes.folder, *nodes.folder.parents):
        if folder.stat().st_uid == 0 and folder != Path("/") and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    environ = {"WINDLASS_NODE_HOME": str(home), "TMPDIR": "/nowhere"}
    attempt = nodes.prepare("/bin/sh", "-c", "id -u; touch kept; pwd")
    relay = nodes.start(attempt, environ=environ, python="/usr/bin/python3", user=65534)
    assert relay.wait(40) == 0, nodes.describe()
    uid, folder = nodes.texts(attempt)
    assert uid == "65534"
    assert Path(folder, "kept").exists()  # the working folder stays for the next attempt; the node's own is gone
    assert not any((home / "runs" / nodes.run_id / "attempts").rglob("node-*"))
    assert not list(home.glob("windlass-*"))


ORPHANS = """
import os, subprocess, sys, time
for _ in range(5):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.05)
        os._exit(0)
    os.wait()
print("the first process:", open("/proc/1/comm").read().strip(), flush=True)
time.sleep(600)
"""


def test_the_relay_can_be_a_container_s_first_process(nodes: Away) -> None:
    within = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    if subprocess.run([*within, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not make a namespace for processes")
    attempt = nodes.prepare("python", "-c", ORPHANS)
    outside = nodes.start(attempt, within=within)
    await_that(lambda: len(nodes.texts(attempt)) == 1, nodes.describe)
    assert nodes.texts(attempt) == ["the first process: windlass-relay"]
    (first,) = kernel.children(outside.pid)

    def zombies() -> list[int]:
        found = [kernel.stat(pid) for pid in kernel.descendants(first)]
        return [stat.pid for stat in found if stat is not None and stat.state == "Z"]

    await_that(lambda: zombies() == [])
    os.kill(first, signal.SIGTERM)
    outside.wait(40)
    assert nodes.outcome(attempt)["reason"] == "preempted"


# ---- a server that is not always there ------------------------------------------------------------

TALKATIVE = """
import json, os, time
spool = open(os.path.join(os.environ["WINDLASS_NODE_DIR"], "metrics-0.jsonl"), "a", buffering=1)
for step in range(10_000):
    print("line", step, "." * int(os.environ.get("PADDING", 0)), flush=True)
    if step % 10 == 0:
        spool.write(json.dumps({"t": time.time(), "s": step, "m": {"loss": float(step)}}) + "\\n")
    if step % 100 == 0:
        time.sleep(0.04)
"""


def test_nothing_is_lost_or_doubled_while_the_server_comes_and_goes(nodes: Away) -> None:
    attempt = nodes.prepare("python", "-c", TALKATIVE)
    relay = nodes.start(attempt)
    for lines in (1, 3_000):
        await_that(lambda: len(nodes.texts(attempt)) > lines, nodes.describe)  # noqa: B023
        nodes.server.kill()
        time.sleep(0.7)  # an outage has a length; nothing is awaited here
        nodes.start_server()
    assert relay.wait(60) == 0, nodes.describe()
    assert nodes.texts(attempt) == [f"line {step} " for step in range(10_000)]
    with nodes.db.read() as tx:
        found = [(point.step, point.value) for point in load_history(tx, nodes.run_id, "loss")]
        count = load_summaries(tx, [nodes.run_id])[nodes.run_id]["loss"].count
    assert sorted(found) == [(step, float(step)) for step in range(0, 10_000, 10)]
    assert count == len(found)


def test_a_server_that_dies_at_every_third_write_gets_everything_once(nodes: Away) -> None:
    # Twelve megabytes are at least six reports, so that several servers are needed to take them.
    attempt = nodes.prepare("python", "-c", TALKATIVE, env={"PADDING": "1200"})
    nodes.server.kill()
    relay = nodes.start(attempt)
    deaths = 0
    while relay.poll() is None and deaths < 60:
        if nodes.server.process.poll() is not None:
            deaths += 1
            moment = ("before", "after")[deaths % 2]
            with contextlib.suppress(RuntimeError):  # it may die before it says that it is ready
                nodes.start_server(WINDLASS_FAULT_COMMIT=f"3:{moment}")
        time.sleep(0.01)
    assert relay.wait(60) == 0, nodes.describe()
    assert deaths >= 3
    assert nodes.texts(attempt) == [f"line {step} {'.' * 1200}" for step in range(10_000)]
    with nodes.db.read() as tx:
        found = [point.step for point in load_history(tx, nodes.run_id, "loss")]
        count = load_summaries(tx, [nodes.run_id])[nodes.run_id]["loss"].count
    assert sorted(step for step in found if step is not None) == list(range(0, 10_000, 10))
    assert count == len(found)


@pytest.mark.slow
def test_ranks_go_on_and_end_while_the_server_is_away_for_long(nodes: Away) -> None:
    attempt = nodes.prepare("python", "-c", TALKATIVE)
    relay = nodes.start(attempt)
    status = nodes.running(attempt)
    nodes.server.kill()
    await_that(lambda: is_gone(status["ranks"][0]["pid"]))
    time.sleep(10.0)  # the outage itself
    assert relay.poll() is None
    nodes.start_server()
    assert relay.wait(60) == 0, nodes.describe()
    assert len(nodes.texts(attempt)) == 10_000


def test_a_node_waits_for_a_server_that_is_not_there_yet(nodes: Away) -> None:
    attempt = nodes.prepare("python", "-c", "print('late')")
    nodes.server.kill()
    relay = nodes.start(attempt)
    await_that(lambda: "Connection refused" in nodes.describe())
    nodes.start_server()
    assert relay.wait(60) == 0, nodes.describe()
    assert nodes.texts(attempt) == ["late"]


# ---- several nodes ------------------------------------------------------------


def test_nodes_wait_for_each_other_and_know_where_to_meet(nodes: Away) -> None:
    names = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "NODE_RANK", "TF_CONFIG")
    script = f"import json, os; print(json.dumps([os.environ[name] for name in {names}]))"
    attempt = nodes.prepare("python", "-c", script, nodes=2)
    second = nodes.start(attempt, 1)
    await_that(lambda: nodes.report(attempt, 1).address is not None, nodes.describe)
    assert nodes.report(attempt, 1).status is None
    first = nodes.start(attempt, 0)
    assert [first.wait(40), second.wait(40)] == [0, 0], nodes.describe()
    found = sorted((json.loads(text) for text in nodes.texts(attempt, nodes=2)), key=lambda row: row[2])
    assert found[0][:2] == found[1][:2]
    assert [row[2:5] for row in found] == [["0", "2", "0"], ["1", "2", "1"]]
    assert len(json.loads(found[0][5])["cluster"]["worker"]) == 2


def test_nodes_that_reach_different_servers_meet_all_the_same(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = base64.urlsafe_b64encode(bytes(32)).decode()
    monkeypatch.setenv(KEY_VARIABLE, key)
    with away(tmp_path, database_url, **{KEY_VARIABLE: key}) as nodes:
        environ = {"WINDLASS_DATABASE_URL": database_url, KEY_VARIABLE: key}
        with running_server(tmp_path / "other", arguments=["--role", "api"], environ=environ) as other:
            attempt = nodes.prepare("python", "-c", "print('met')", nodes=2, secrets={"TOKEN": "sesame"})
            relays = [nodes.start(attempt, 0), nodes.start(attempt, 1, environ={"WINDLASS_SERVER": other.url})]
            assert [relay.wait(40) for relay in relays] == [0, 0], nodes.describe()
        assert nodes.texts(attempt, nodes=2) == ["met", "met"]


ALL_REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
print("sum", value.item())
dist.destroy_process_group()
"""


@pytest.mark.torch
def test_ranks_on_two_nodes_reduce_together(nodes: Away) -> None:
    attempt = nodes.prepare("python", "-c", ALL_REDUCE, nodes=2, workers=2)
    relays = [nodes.start(attempt, rank) for rank in range(2)]
    assert [relay.wait(120) for relay in relays] == [0, 0], nodes.describe()
    assert nodes.texts(attempt, nodes=2) == ["sum 10.0"] * 4


# ---- those who have no business here ------------------------------------------------------------


def test_the_token_of_another_node_or_attempt_opens_nothing(nodes: Away) -> None:
    attempt, other = nodes.prepare("true", nodes=2), nodes.prepare("true")
    hello = {"incarnation": "x", "address": "127.0.0.1", "port": 1000}
    tokens = [nodes.book.token(attempt, 1), nodes.book.token(other, 0), nodes.server.token, "x", "\xe9"]
    with nodes.server.client() as client:
        for token in tokens:
            headers = {"Authorization": f"Bearer {token}".encode("latin-1")}
            for method, name in (("POST", "hello"), ("GET", "code"), ("POST", "report")):
                answer = client.request(method, f"/api/nodes/{attempt}/0/{name}", headers=headers, json=hello)
                assert answer.status_code == 401, (name, token)
        headers = {"Authorization": f"Bearer {nodes.book.token(attempt, 0)}"}
        assert client.get("/api/runs", headers=headers).status_code == 401
    assert nodes.report(attempt).address is None


def test_garbage_is_refused_and_changes_nothing(nodes: Away) -> None:
    attempt = nodes.prepare("true")
    headers = {"Authorization": f"Bearer {nodes.book.token(attempt, 0)}"}
    head = {"incarnation": "x", "files": []}
    bodies = [
        b"",
        b"\xff\xfe\x00garbage\n\x00\x01",
        b"[]\n",
        json.dumps(head).encode() + b"\nmore than it names",
        json.dumps({**head, "files": [{"name": "rank-0.log", "position": -1, "size": 0}]}).encode() + b"\n",
        json.dumps({**head, "files": [{"name": "rank-0.log", "position": 2**70, "size": 0}]}).encode() + b"\n",
        json.dumps({**head, "outcome": {"reason": "made up"}}).encode() + b"\n",
        json.dumps({**head, "status": {"state": "running"}}).encode() + b"\n",
        b'{"incarnation": "x", "usage": {"at": NaN}}\n',
    ]
    with nodes.server.client() as client:
        hello = {"incarnation": "x", "address": "127.0.0.1", "port": 1000}
        assert client.post(f"/api/nodes/{attempt}/0/hello", headers=headers, json=hello).status_code == 200
        for body in bodies:
            answer = client.post(f"/api/nodes/{attempt}/0/report", headers=headers, content=body)
            assert answer.status_code == 422, (body, answer.text)
        answer = client.post(f"/api/nodes/{attempt}/0/report", headers=headers, content=b"x" * (9 << 20))
        assert answer.status_code == 413
        far = {**head, "files": [{"name": "rank-0.log", "position": 1 << 30, "size": 1}]}
        answer = client.post(f"/api/nodes/{attempt}/0/report", headers=headers, content=json.dumps(far) + "\nx")
        assert answer.json()["positions"] == {"rank-0.log": 0}
    assert nodes.texts(attempt) == []
    assert nodes.report(attempt).outcome is None


def test_the_agent_is_downloaded_once(nodes: Away) -> None:
    with nodes.server.client() as client:
        first = client.get("/api/nodes/agent.zip", headers={"Authorization": ""})
        assert first.status_code == 200
        again = client.get("/api/nodes/agent.zip", headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
