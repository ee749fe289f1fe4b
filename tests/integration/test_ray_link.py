"""The engine's end of the driver process, against a driver that does as a test tells it. Needs no Ray."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.away import await_that
from windlass.core.errors import Unavailable
from windlass.engines.ray.link import Answer, Link

# Says its tables, then does what `op` says: dies, refuses, or is done; `keep` is never answered.
DRIVER = """
import json, os, socket, sys
connection = socket.socket(fileno=int(sys.argv[-1].partition("=")[2]))
def say(message): connection.sendall(json.dumps(message).encode() + b"\\n")
say({"tables": {"nodes": [], "groups": {}, "actors": {}, "followed": [str(os.getpid())]}})
for line in connection.makefile():
    message = json.loads(line)
    if message["op"] == "die":
        os._exit(1)
    if message["op"] != "keep":
        error = {"kind": "ValueError", "message": "no"} if message["op"] == "refuse" else None
        say({"done": message["id"], "error": error})
"""


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    link = Link([sys.executable, "-c", DRIVER], log_file=tmp_path / "driver.log", notify=threading.Event().set)
    await_that(lambda: link.tables() is not None)
    yield link
    link.close()


def test_requests_are_answered(link: Link) -> None:
    assert link.wait(link.ask("do", wants_answer=True), 10.0) == Answer()
    assert link.wait(link.ask("refuse", wants_answer=True), 10.0) == Answer(kind="ValueError", message="no")


def test_an_answer_that_nobody_wants_is_not_kept(link: Link) -> None:
    number = link.ask("do")
    await_that(lambda: not link.is_under_way(number))
    assert link.take_answer(number) is None


def test_what_a_driver_had_not_done_when_it_died_is_not_under_way(link: Link) -> None:
    first = _pid(link)
    pending = link.ask("keep", wants_answer=True)
    assert link.wait(pending, 0.05) is None
    assert link.is_under_way(pending)
    link.ask("die")
    await_that(lambda: not link.is_under_way(pending))
    assert link.take_answer(pending) is None
    await_that(lambda: _pid(link) != first)
    await_that(_succeeds(lambda: link.ask("do")))


def test_nobody_is_asked_after_the_end(link: Link) -> None:
    link.close()
    with pytest.raises(Unavailable):
        link.ask("do")


def _pid(link: Link) -> str:
    tables = link.tables()
    assert tables is not None
    return tables.followed[0]


def _succeeds(act: Callable[[], object]) -> Callable[[], bool]:
    def try_it() -> bool:
        try:
            act()
        except Unavailable:
            return False
        return True

    return try_it
