"""The line between supervisors: only who has the key is heard, and a connection that breaks is renewed."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable

import pytest

from windlass.agent.gang import Hub, Member, open_line
from windlass.agent.ports import free_port

PLAN = {"nnodes": 2, "node_rank": 0, "master_addr": "127.0.0.1", "recovery": {"most": 3, "key": "secret"}}


class Line:
    """Both ends in one process."""

    def __init__(self, port: int, *, key: str = "secret") -> None:
        self.selector = selectors.DefaultSelector()
        self.hub = Hub("127.0.0.1", port, b"secret", 2)
        self.member = Member("127.0.0.1", port, key.encode(), 1)
        for end in (self.hub, self.member):
            end.attach(self.selector)

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline
            self.turn()

    def turn(self) -> None:
        self.member.tick(time.monotonic())
        for key, _ in self.selector.select(0.05):
            if key.fd in self.selector.get_map():
                key.data()


def test_both_hear_each_other() -> None:
    line = Line(free_port())
    assert line.hub.missing() == [1]
    assert not line.member.tell({"failed": []})  # nobody is there yet
    line.until(lambda: line.hub.missing() == [])
    assert line.member.tell({"failed": ["signal"]})
    heard: list[object] = []
    line.until(lambda: heard.extend(line.hub.take()) or heard)  # type: ignore[func-returns-value]
    assert heard == [(1, {"failed": ["signal"]})]
    line.hub.tell_all({"again": 1})
    line.until(lambda: heard.extend(line.member.take()) or len(heard) == 2)  # type: ignore[func-returns-value]
    assert heard[1] == (0, {"again": 1})


def test_what_comes_between_two_selectors_is_not_lost() -> None:
    line = Line(free_port())
    line.until(lambda: line.hub.missing() == [])
    line.hub.detach()
    assert line.member.tell({"failed": ["signal"]})
    line.hub.attach(line.selector)
    heard: list[object] = []
    line.until(lambda: heard.extend(line.hub.take()) or heard)  # type: ignore[func-returns-value]


def test_strangers_are_not_heard() -> None:
    line = Line(free_port(), key="guessed")
    for _ in range(40):
        line.turn()
    assert line.hub.missing() == [1]
    assert line.hub.take() == []


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b'{"node": 1}\n', b"[1]\n", b"x" * 100_000])
def test_nonsense_is_hung_up_on(said: bytes) -> None:
    port = free_port()
    line = Line(port)
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(said)
        stranger.settimeout(0)

        def is_cut_off() -> bool:
            try:
                while stranger.recv(4096):
                    pass
                return True
            except BlockingIOError:
                return False
            except ConnectionResetError:
                return True

        line.until(is_cut_off)
    line.until(lambda: line.hub.missing() == [])  # the others are as ever


def test_who_has_no_peers_or_no_restarts_has_no_line() -> None:
    assert open_line({**PLAN, "nnodes": 1}) is None
    assert open_line({**PLAN, "recovery": None}) is None
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port - 1))
        taken.listen()
        assert open_line({**PLAN, "master_port": port}) is None
    assert isinstance(open_line({**PLAN, "master_port": port}), Hub)
    assert isinstance(open_line({**PLAN, "master_port": port, "node_rank": 1}), Member)
