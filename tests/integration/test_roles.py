"""Gangs whose processes do different work, on a real LocalEngine of one node and of two."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.local_runs import LocalRuns
from windlass.core.exits import Exit, ExitReason
from windlass.core.roles import Role

SERVES = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("told to stop", flush=True), sys.exit(3)))
open("serves-" + os.environ["WINDLASS_ROLE_RANK"], "w").close()
time.sleep(600)
"""
WORKS = """
import json, os, time
servers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["ps"])
while not all(os.path.exists("serves-%d" % number) for number in range(servers)):  # and can be told to stop
    time.sleep(0.01)
print(os.environ["WINDLASS_ROLE"], os.environ["WINDLASS_ROLE_RANK"], os.environ["RANK"], os.environ["TF_CONFIG"])
"""
FAILS = "import sys\nsys.exit(7)\n"


@pytest.fixture
def two_nodes(tmp_path: Path) -> Iterator[LocalRuns]:
    runs = LocalRuns(tmp_path, nodes=2)
    yield runs
    runs.clean_up()
    assert runs.processes() == []


def role(runs: LocalRuns, name: str, count: int, text: str, *, essential: bool = True) -> Role:
    return Role(name=name, count=count, argv=("python", runs.script(f"{name}.py", text)), essential=essential)


def start(runs: LocalRuns, *roles: Role) -> str:
    processes = sum(role.count for role in roles)
    return runs.start(*roles[0].argv, workers=processes // runs.nodes, roles=roles)


def end_of(runs: LocalRuns, attempt: str) -> Exit:
    exit = runs.wait(attempt).exit
    assert exit is not None
    return exit


def test_servers_are_told_to_stop_when_the_workers_are_done(runs: LocalRuns) -> None:
    attempt = start(runs, role(runs, "worker", 2, WORKS), role(runs, "ps", 1, SERVES, essential=False))
    exit = end_of(runs, attempt)
    assert (exit.reason, exit.exit_code) == (ExitReason.COMPLETED, 0), exit
    name, role_rank, rank, config = runs.output(attempt, rank=1).decode().split(maxsplit=3)
    assert (name, role_rank, rank) == ("worker", "1", "1")
    assert {kind: len(found) for kind, found in json.loads(config)["cluster"].items()} == {"worker": 2, "ps": 1}
    assert runs.output(attempt, rank=2) == b"told to stop\n"


def test_a_server_that_fails_ends_the_run(runs: LocalRuns) -> None:
    waits = "import time\ntime.sleep(600)\n"
    exit = end_of(runs, start(runs, role(runs, "worker", 1, waits), role(runs, "ps", 1, FAILS, essential=False)))
    assert (exit.reason, exit.exit_code, exit.rank) == (ExitReason.EXIT_CODE, 7, 1)


def test_all_essential_roles_are_waited_for(runs: LocalRuns) -> None:
    late = "import time\nwhile True:\n    time.sleep(0.2)\n    print('late', flush=True)\n    break\n"
    attempt = start(runs, role(runs, "worker", 1, "print('early')\n"), role(runs, "evaluator", 1, late))
    assert end_of(runs, attempt).reason is ExitReason.COMPLETED
    assert runs.output(attempt, rank=1) == b"late\n"


def test_a_node_of_servers_alone_goes_on_until_the_workers_elsewhere_are_done(two_nodes: LocalRuns) -> None:
    runs = two_nodes
    attempt = start(runs, role(runs, "worker", 2, WORKS), role(runs, "ps", 2, SERVES, essential=False))
    exit = end_of(runs, attempt)
    assert exit.reason is ExitReason.COMPLETED, exit
    assert [runs.output(attempt, rank=rank, node=1) for rank in (2, 3)] == [b"told to stop\n"] * 2


def test_a_worker_that_fails_is_blamed_though_servers_go_on(two_nodes: LocalRuns) -> None:
    runs = two_nodes
    attempt = start(runs, role(runs, "worker", 1, FAILS), role(runs, "ps", 1, SERVES, essential=False))
    exit = end_of(runs, attempt)
    assert (exit.reason, exit.exit_code, exit.rank) == (ExitReason.EXIT_CODE, 7, 0)
