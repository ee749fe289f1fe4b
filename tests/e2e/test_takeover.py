"""API and controllers as separate processes on one PostgreSQL: a standby takes over within 10 s of the active one's
death, and runs that were under way are neither lost nor started twice.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.crashing import Persistent, check_record
from windlass.testing.nursery import Child
from windlass.testing.postgres import PostgresServer
from windlass.testing.servers import spawn_server, start_server

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(180)]


class Controllers:
    """`python -m windlass.server --role controller` processes over one home and one database."""

    def __init__(self, home: Path, database_url: str) -> None:
        self._home = home
        self.environ = {"WINDLASS_DATABASE_URL": database_url}
        self._processes: list[subprocess.Popen[bytes] | Child] = []

    def start(self) -> subprocess.Popen[bytes] | Child:
        log = self._home / "controller.log"
        process = spawn_server(self._home, ["--role", "controller"], environ=self.environ, log=log)
        self._processes.append(process)
        return process

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def database_url(postgres_server: PostgresServer) -> Iterator[str]:
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def user(tmp_path: Path, database_url: str) -> Iterator[Persistent]:
    """Of a server that answers requests and moves nothing."""
    home = tmp_path / "home"
    server = start_server(home, arguments=["--role", "api"], environ={"WINDLASS_DATABASE_URL": database_url})
    user = Persistent(home=home, fault="", server=server)
    yield user
    user.close()


@pytest.fixture
def controllers(user: Persistent, database_url: str) -> Iterator[Controllers]:
    controllers = Controllers(user.home, database_url)
    yield controllers
    controllers.close()


def test_a_standby_takes_over(tmp_path: Path, user: Persistent, controllers: Controllers) -> None:
    first = controllers.start()
    witness = tmp_path / "witness"
    slow = user.submit(
        {"command": f"echo $WINDLASS_ATTEMPT_ID >> {witness}; sleep 3", "resources": {"cpus": 0.1}}, "slow"
    )
    user.until(slow, lambda run: run["state"] == "running")
    controllers.start()  # the standby

    os.kill(first.pid, signal.SIGSTOP)  # alive, so that only the standing beat gives it away
    waiting = user.submit({"command": f"echo $WINDLASS_ATTEMPT_ID >> {witness}", "resources": {"cpus": 0.1}}, "waiting")
    began = time.monotonic()
    assert user.until_over(waiting)["state"] == "succeeded"
    assert time.monotonic() - began < 10
    os.kill(first.pid, signal.SIGCONT)  # it comes back and must find that it is no longer the one

    assert user.until_over(slow)["state"] == "succeeded"
    more = [user.submit({"command": f"echo $WINDLASS_ATTEMPT_ID >> {witness}"}, f"more-{n}") for n in range(10)]
    for run_id in more:
        assert user.until_over(run_id)["state"] == "succeeded"
    for run_id in [slow, waiting, *more]:
        check_record(user, run_id)
    assert sorted(witness.read_text().split()) == sorted(f"{run_id}.1" for run_id in [slow, waiting, *more])
    assert first.poll() is None


def test_a_killed_controller_is_replaced_at_once_on_its_own_machine(user: Persistent, controllers: Controllers) -> None:
    first = controllers.start()
    assert user.until_over(user.submit({"command": "true"}, "before"))["state"] == "succeeded"
    controllers.start()
    first.kill()
    first.wait()
    began = time.monotonic()
    assert user.until_over(user.submit({"command": "true"}, "after"))["state"] == "succeeded"
    assert time.monotonic() - began < 10


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("shards", [1, 4])
def test_500_submissions_while_controllers_are_killed(
    tmp_path: Path, user: Persistent, controllers: Controllers, shards: int
) -> None:
    """Nothing is lost, nothing is started twice, and the queue never stands still for 10 s."""
    controllers.environ["WINDLASS_CONTROLLER_SHARDS"] = str(shards)
    active = [controllers.start(), controllers.start()]
    witness = tmp_path / "witness"
    spec = {"command": f"echo $WINDLASS_ATTEMPT_ID >> {witness}", "resources": {"cpus": 0.05}}

    def submit(number: int) -> str:
        return user.submit(spec, f"run-{number}")

    with ThreadPoolExecutor(8) as pool:
        submissions = [pool.submit(submit, number) for number in range(500)]
        for done in (120, 240, 360):
            await_condition(lambda done=done: _ended(user) >= done)
            victim = active.pop(0)
            victim.kill()
            victim.wait()
            before = _ended(user)
            await_condition(lambda before=before: _ended(user) > before + 5, timeout_s=10)  # others go on
            active.append(controllers.start())
        run_ids = [submission.result() for submission in submissions]
    for run_id in run_ids:
        assert user.until_over(run_id)["state"] == "succeeded"
    for run_id in run_ids[::25]:
        check_record(user, run_id)
    started = witness.read_text().split()
    assert len(started) == len(set(started)), "an attempt was started twice"
    assert {attempt.rpartition(".")[0] for attempt in started} == set(run_ids)


def _ended(user: Persistent) -> int:
    """How many runs are over, as far as a page of 500 tells."""
    page = user.json("GET", "/api/runs", params={"state": "succeeded", "limit": 500})
    return len(page["runs"])


def await_condition(condition: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s in vain"
        time.sleep(0.05)
