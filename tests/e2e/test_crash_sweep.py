"""kill -9 of the server before and after every commit of submit, start, finish, cancel and retry: no run is lost, none
runs twice, all reach the right state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.crashing import Persistent, check_record

LAST_COMMIT = 60  # far beyond what a scenario needs: the sweep ends when a server survives
pytestmark = pytest.mark.timeout(900)


@contextlib.contextmanager
def crashing_at(folder: Path, number: int, moment: str) -> Iterator[Persistent]:
    user = Persistent(home=folder / f"{number}-{moment}", fault=f"{number}:{moment}")
    try:
        yield user
    finally:
        user.close()


def ran(witness: Path) -> list[str]:
    """Attempt ids, one per start of the command."""
    return witness.read_text().split() if witness.exists() else []


def finish(user: Persistent, witness: Path) -> None:
    run_id = user.submit({"command": f"echo $WINDLASS_ATTEMPT_ID >> {witness}"}, "finish")
    assert user.until_over(run_id)["state"] == "succeeded"
    assert ran(witness) == [f"{run_id}.1"]
    assert check_record(user, run_id) == ["submitted", "placed", "started", "attempt_ended", "succeeded"]


def cancel(user: Persistent, witness: Path) -> None:
    run_id = user.submit({"command": f"echo $WINDLASS_ATTEMPT_ID >> {witness}; sleep 600"}, "cancel")
    user.until(run_id, lambda run: run["state"] == "running")
    user.json("POST", f"/api/runs/{run_id}/cancel", json={"grace_s": 1})
    assert user.until_over(run_id)["state"] == "cancelled"
    assert ran(witness) == [f"{run_id}.1"]
    check_record(user, run_id)


def retry(user: Persistent, witness: Path) -> None:
    # Killed from outside at the first attempt (transient), in both of its lives; fine at the second.
    command = f"echo $WINDLASS_ATTEMPT_ID >> {witness}; if [ $WINDLASS_ATTEMPT = 1 ]; then kill -9 $$; fi"
    run_id = user.submit({"command": command, "retry": {"max": 2, "backoff": "0.05s"}}, "retry")
    assert user.until_over(run_id)["state"] == "succeeded"
    assert ran(witness) == [f"{run_id}.1", f"{run_id}.1", f"{run_id}.2"]
    kinds = check_record(user, run_id)
    assert (kinds.count("recovered"), kinds.count("retrying")) == (1, 1)
    reasons = [a["exit"]["reason"] for a in user.json("GET", f"/api/runs/{run_id}/attempts")["attempts"]]
    assert reasons == ["signal", "completed"]


def queue(user: Persistent, witness: Path) -> None:
    # More than fits at once, so that placing and finishing interleave.
    command = f"echo $WINDLASS_ATTEMPT_ID >> {witness}"
    spec = {"command": command, "resources": {"cpus": 1}}
    runs = [user.submit(spec, f"queue-{index}") for index in range(5)]
    for run_id in runs:
        assert user.until_over(run_id)["state"] == "succeeded"
        check_record(user, run_id)
    assert sorted(ran(witness)) == sorted(f"{run_id}.1" for run_id in runs)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", [4, 6, 7])
def test_server_dies_at_a_commit(tmp_path: Path, number: int, moment: str) -> None:
    with crashing_at(tmp_path, number, moment) as user:
        finish(user, tmp_path / "witness")


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("scenario", [finish, cancel, retry, queue])
def test_server_dies_at_every_commit(tmp_path: Path, scenario, moment: str) -> None:
    for number in range(1, LAST_COMMIT):
        witness = tmp_path / f"witness-{number}"
        with crashing_at(tmp_path, number, moment) as user:
            scenario(user, witness)
            assert user.server is not None
            survived = user.crashes == 0
        if survived:
            break
    else:
        pytest.fail(f"the server still died at commit {LAST_COMMIT}: does the sweep end?")
    assert number >= 7, "the sweep has not reached the commits it is about"
