"""Many users at once: runs from 16 threads, a quarter of them cancelled at random moments."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.crashing import Persistent, check_record
from windlass.testing.servers import processes_of, running_server

THREADS = 16
SPEC: dict[str, Any] = {"command": "echo $WINDLASS_RUN_ID; sleep 0.02", "resources": {"cpus": 0.1}}
ORIGIN = {"search_path": "/usr/bin:/bin"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("runs", [60, pytest.param(200, marks=pytest.mark.slow)])
def test_all_end_in_a_state_that_fits_their_events(tmp_path: Path, runs: int) -> None:
    chance = random.Random(7)
    doomed = set(chance.sample(range(runs), runs // 4))
    delays = {index: chance.uniform(0, 1.5) for index in doomed}
    with running_server(tmp_path / "home") as server, server.client() as client:

        def one(index: int) -> tuple[str, bool]:
            body = {"spec": SPEC, "origin": ORIGIN}
            response = client.post("/api/runs", json=body, headers={"Idempotency-Key": f"run-{index}"})
            assert response.status_code == 201, response.text
            run_id = response.json()["id"]
            if index not in doomed:
                return run_id, False
            time.sleep(delays[index])  # the random moment
            response = client.post(f"/api/runs/{run_id}/cancel", json={"grace_s": 1})
            assert response.status_code in (200, 409), response.text  # 409: it was quicker
            return run_id, response.status_code == 200

        with ThreadPoolExecutor(THREADS) as pool:
            asked = dict(pool.map(one, range(runs)))
        assert len(asked) == runs, "two submissions became one run"
        user = Persistent(home=server.home, fault="", server=server)
        for run_id, cancelled in asked.items():
            state = user.until_over(run_id)["state"]
            kinds = check_record(user, run_id)
            # One that finished in the moment before the signal has succeeded, and its events say so.
            allowed = {"cancelled", "succeeded"} if cancelled else {"succeeded"}
            assert state in allowed, kinds
        cluster = user.json("GET", "/api/cluster")
        assert (cluster["queued"], cluster["running"]) == (0, 0)
        assert cluster["nodes"][0]["cpus_used"] == pytest.approx(0)
        server.terminate()
    assert processes_of(tmp_path / "home") == []
