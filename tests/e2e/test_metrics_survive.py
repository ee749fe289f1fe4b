"""kill -9 of the server at random while points come in, from a job's spool and over HTTP: afterwards the points are
those that were logged, each taken once.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.e2e.crashing import Persistent
from windlass.db.database import Database, sqlite_url
from windlass.tracking.series import load_history
from windlass.tracking.store import load_summaries
from windlass.tracking.system import PREFIX

SCRIPT = """
import json, math, os, sys, time
from windlass import job

step = 0
while not os.path.exists(sys.argv[1]):
    job.log(step, loss=math.sin(step), lr=1 / (step + 1))
    step += 1
    time.sleep(0.001)
with open(sys.argv[2], "w") as file:
    json.dump(step, file)
"""


class Sender(threading.Thread):
    """A client that numbers its points and sends again what was not answered."""

    def __init__(self, user: Persistent, run_id: str, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.user = user
        self.run_id = run_id
        self.stop = stop
        self.acknowledged = 0
        self.failures: list[str] = []

    def run(self) -> None:
        source = random.Random(3)
        while not self.stop.is_set():
            size = source.randint(1, 50)
            points = [
                {"step": step, "at": 1_000.0 + step, "values": {"sent": step / 7}}
                for step in range(self.acknowledged, self.acknowledged + size)
            ]
            body = {"source": "client", "seq": self.acknowledged, "points": points}
            server = self.user.server
            try:
                assert server is not None
                with server.client(timeout_s=5) as client:
                    answer = client.post(f"/api/runs/{self.run_id}/metrics", json=body)
            except httpx.HTTPError:
                time.sleep(0.01)
                continue
            if answer.is_success:
                self.acknowledged = answer.json()["next_seq"]
            elif answer.status_code != 503:
                self.failures.append(answer.text)
                return


@pytest.mark.parametrize(
    ("kills", "longest_s"),
    [(3, 0.8), pytest.param(50, 3.5, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
def test_points_are_those_that_were_logged(tmp_path: Path, kills: int, longest_s: float) -> None:
    source = random.Random(kills)
    script, end, count = tmp_path / "job.py", tmp_path / "end", tmp_path / "count"
    script.write_text(SCRIPT)
    user = Persistent(home=tmp_path / "home", fault="")
    stop = threading.Event()
    try:
        run_id = user.submit({"command": f"{sys.executable} {script} {end} {count}", "code": None}, "once")
        user.until(run_id, lambda run: run["state"] == "running" and run["metrics"].get("loss") is not None)
        sender = Sender(user, run_id, stop)
        sender.start()
        for _ in range(kills):
            time.sleep(source.uniform(0, longest_s))  # at random: there is nothing to wait for
            assert user.server is not None
            user.server.kill()
            user.json("GET", f"/api/runs/{run_id}")
        stop.set()
        sender.join(30)
        end.touch()
        assert user.until_over(run_id)["state"] == "succeeded"
    finally:
        stop.set()
        user.close()
    assert sender.failures == []
    assert sender.acknowledged > 0
    check(user.home, run_id, logged=json.loads(count.read_text()), sent=sender.acknowledged)


def check(home: Path, run_id: str, *, logged: int, sent: int) -> None:
    db = Database(sqlite_url(home / "windlass.db"))
    with db.read() as tx:
        known = {
            name: summary
            for name, summary in load_summaries(tx, [run_id])[run_id].items()
            if not name.startswith(PREFIX)
        }
        found = {name: load_history(tx, run_id, name) for name in known}
    db.close()
    assert {name: [one.step for one in sorted(found[name])] for name in found} == {
        "loss": list(range(logged)),
        "lr": list(range(logged)),
        "sent": list(range(sent)),
    }
    assert [one.value for one in sorted(found["lr"])] == [1 / (step + 1) for step in range(logged)]
    assert [one.value for one in sorted(found["sent"])] == [step / 7 for step in range(sent)]
    assert {name: summary.count for name, summary in known.items()} == {"loss": logged, "lr": logged, "sent": sent}
