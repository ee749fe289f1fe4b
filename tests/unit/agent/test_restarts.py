"""How the supervisors of a gang agree to start all ranks again, and what happens when one does not come along."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from windlass.agent import gang as gang_module
from windlass.agent import restarts as restarts_module
from windlass.agent.gang import Member, line_port, open_line
from windlass.agent.ports import free_port
from windlass.agent.progress import ProgressFile
from windlass.agent.restarts import Restarts
from windlass.agent.status import Status
from windlass.agent.verdict import Verdict

KILLED = Verdict("signal", "rank 0 was killed by SIGKILL", rank=0, signal_number=9)


class Node:
    def __init__(self, folder: Path, number: int, port: int, nnodes: int) -> None:
        self.folder = folder / str(number)
        self.folder.mkdir()
        self.plan: dict[str, Any] = {
            "nnodes": nnodes,
            "node_rank": number,
            "node_dir": str(self.folder),
            "node_name": f"n{number}",
            "node_names": [f"n{one}" for one in range(nnodes)],
            "master_addr": "127.0.0.1",
            "master_port": port,
            "recovery": {"most": 3, "errors_too": False, "key": "secret"},
        }
        status = Status(str(self.folder))
        self.restarts = Restarts(self.plan, status, open_line(self.plan), free_port)
        self.verdict: Verdict | None = None

    def settle(self, now: float | None = None) -> None:
        self.verdict = self.verdict or self.restarts.settle(time.monotonic() if now is None else now)

    def start_again(self) -> None:
        """As the supervisor does it."""
        failed = self.restarts.again
        assert failed is not None
        self.restarts.ranks_have_ended()
        self.plan.update(generation=failed.generation)
        self.restarts.begin()
        self.restarts.begun(failed)


class Gang:
    def __init__(self, folder: Path, nnodes: int = 2) -> None:
        port = free_port()
        assert line_port(port) == port - 1
        self.nodes = [Node(folder, number, port, nnodes) for number in range(nnodes)]
        self.selector = selectors.DefaultSelector()
        for node in self.nodes:
            node.restarts.attach(self.selector)
        self.until(lambda: not self.is_missing())

    def is_missing(self) -> bool:
        line: Any = self.nodes[0].restarts._line
        return bool(line.missing())

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline
            self.turn()

    def turn(self) -> None:
        for node in self.nodes:
            node.settle()
        for key, _ in self.selector.select(0.02):
            if key.fd in self.selector.get_map():
                key.data()

    def close(self) -> None:
        for node in self.nodes:
            node.restarts.leave()
            node.restarts.detach()
        self.selector.close()


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    found = Gang(tmp_path)
    yield found
    found.close()


def test_all_begin_again_and_say_so(gang: Gang) -> None:
    hub, member = gang.nodes
    assert member.restarts.consider(KILLED, None) is None
    gang.until(lambda: hub.restarts.again and member.restarts.again)
    member.start_again()
    for _ in range(3):
        gang.turn()
    hub.start_again()  # later than the other, whose word it has then
    gang.until(lambda: hub.restarts._awaited is None)
    hub.settle(time.monotonic() + 1000)
    member.settle(time.monotonic() + 1000)
    assert (hub.verdict, member.verdict) == (None, None)


def test_a_node_that_does_not_come_along_ends_it(gang: Gang) -> None:
    hub, member = gang.nodes
    assert hub.restarts.consider(KILLED, None) is None
    gang.until(lambda: member.restarts.again)
    hub.start_again()
    gang.turn()
    assert hub.verdict is None
    hub.settle(time.monotonic() + restarts_module._BEGIN_PATIENCE_S + 1)
    assert hub.verdict is not None
    assert (hub.verdict.reason, hub.verdict.rank) == ("signal", 0)
    assert hub.verdict.message.endswith("no word from node 1 after the restart in place")


def test_a_node_that_lost_the_first_one_ends_too(gang: Gang) -> None:
    hub, member = gang.nodes
    assert hub.restarts.consider(KILLED, None) is None
    gang.until(lambda: member.restarts.again)
    hub.restarts.leave()  # it was stopped meanwhile
    gang.turn()
    member.start_again()
    member.settle(time.monotonic() + restarts_module._BEGIN_PATIENCE_S + 1)
    assert member.verdict is not None
    assert "no word from node 0" in member.verdict.message


def test_nobody_counts_on_a_node_that_stops(gang: Gang) -> None:
    hub, member = gang.nodes
    member.restarts.leave()  # it is preempted
    gang.until(gang.is_missing)
    assert hub.restarts.consider(KILLED, None) == KILLED
    for _ in range(30):
        gang.turn()
    assert gang.is_missing()  # and does not come back


def test_a_first_node_that_stops_agrees_to_nothing(gang: Gang) -> None:
    hub, member = gang.nodes
    assert member.restarts.consider(KILLED, None) is None
    hub.restarts.leave()
    began = time.monotonic()
    gang.until(lambda: member.verdict)  # without waiting for an answer that does not come
    assert member.verdict == KILLED
    assert time.monotonic() - began < restarts_module._ANSWER_PATIENCE_S
    assert member.restarts.consider(KILLED, None) == KILLED


def test_the_record_of_a_second_failure_knows_the_steps_before(tmp_path: Path) -> None:
    node = Node(tmp_path, 0, free_port(), 1)
    progress = ProgressFile(str(node.folder / "progress-0"))
    progress.stepped(7)
    assert node.restarts.consider(KILLED, None) is None
    assert node.restarts.again is not None
    assert node.restarts.again.step == 7
    node.start_again()  # and its ranks die before they have told a step
    assert node.restarts.consider(KILLED, None) is None
    assert node.restarts.again.step == 7


def test_the_first_nodes_address_is_asked_for_seldom_and_then_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    resolve = socket.getaddrinfo

    def ask(*args: Any, **options: Any) -> Any:
        asked.append(1)
        if len(asked) <= 4:
            raise socket.gaierror("no such name")
        return resolve(*args, **options)

    monkeypatch.setattr(gang_module.socket, "getaddrinfo", ask)
    member, pauses = Member("127.0.0.1", free_port(), b"secret", 1), []
    while not member._found:
        member.tick(member.next_at() or 0.0)
        pauses.append(member._pause_s)
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]  # the next one
    for _ in range(3):  # nobody listens there
        assert member._wire is not None
        member._hear(member._wire)
        member.tick(member.next_at() or 0.0)
    assert len(asked) == 5
    member.close()
