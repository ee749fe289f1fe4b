"""The samples that an elastic run trains on, while nodes go and come, are those of a run that nothing happened to."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.e2e.elastic import Training
from tests.e2e.sites import ENGINES, Installation, opened_site
from windlass.agent import layout
from windlass.agent.files import read_json
from windlass.client import Client, Run
from windlass.core.clock import SystemClock
from windlass.core.resources import Node
from windlass.db.database import sqlite_url
from windlass.engines.local import LocalEngine
from windlass.server import homefolder
from windlass.server.compose import compose
from windlass.server.settings import Settings
from windlass.testing.servers import end_processes_of, serving

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(600)]


class FickleEngine(LocalEngine):
    """A machine that is divided into nodes, some of which are gone at times."""

    gone: frozenset[str] = frozenset()

    def inventory(self) -> Sequence[Node]:
        return [node for node in super().inventory() if node.name not in self.gone]

    def take_away(self, run: Run, name: str) -> None:
        """The node is gone, with all that was on it, without a word."""
        self.gone |= {name}
        attempt = run.attempts()[-1]
        status = read_json(os.path.join(attempt.log_dirs[attempt.nodes.index(name)], layout.STATUS))
        assert status is not None
        os.kill(status["pid"], signal.SIGKILL)


@contextmanager
def running(home: Path) -> Iterator[tuple[FickleEngine, Client]]:
    homefolder.prepare(home)
    opened: list[FickleEngine] = []

    def open_engines(nudge: Callable[[], None]) -> dict[str, FickleEngine]:
        opened.append(FickleEngine(home, home / "blobs", notify=nudge, clock=SystemClock(), nodes=4))
        return {"local": opened[0]}

    parts = compose(Settings(home=home, database_url=sqlite_url(home / "windlass.db")), open_engines=open_engines)
    controller = parts.controller
    assert controller is not None
    assert controller.activate()
    thread = threading.Thread(target=controller.run_forever, name="controller")
    thread.start()
    token = parts.services.token or ""
    try:
        with serving(parts) as http, Client(url=str(http.base_url), token=token, home=home) as client:
            yield opened[0], client
    finally:
        controller.stop()
        thread.join()
        end_processes_of(home)
        parts.db.close()


def test_nodes_go_and_come_and_no_sample_is_missed_or_repeated(tmp_path: Path) -> None:
    with running(tmp_path / "home") as (engine, client):
        training = Training(client, tmp_path, max_nodes=4)
        training.wait_for_steps(nodes=4)
        engine.take_away(training.run, "local-3")
        training.wait_for_steps(nodes=3)
        engine.take_away(training.run, "local-1")
        training.wait_for_steps(nodes=2)
        engine.gone = frozenset()
        last = training.wait_for_steps(nodes=4)
        ended = training.end_after(last + 100)
        exits = [attempt.exit.reason for attempt in training.run.attempts() if attempt.exit]
        assert exits == ["lost", "lost", "preempted", "completed"]
        messages = [event.message for event in training.run.events()]
        assert any(message.startswith("it grows from 2 to 4 nodes") for message in messages), messages
    training.check(ended)


@pytest.mark.parametrize("engine", ENGINES)
def test_four_ranks_on_two_nodes_go_on_with_one_and_have_it_back(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with opened_site(engine, request) as site:
        installation = Installation(tmp_path, site)
        try:
            with installation.client() as client:
                saves = {"folder": str(tmp_path / "saves")}
                training = Training(client, tmp_path, max_nodes=2, nproc=2, checkpoint=saves, resources={"cpus": 1})
                training.wait_for_steps(nodes=2)
                first = training.run.attempts()[-1]
                for node in client.cluster().nodes:
                    if node.name not in first.nodes:  # none is to take the place of the one that goes
                        client.set_aside(node.name)
                if engine == "local":  # where a node's supervisor can be killed, but the machine stays
                    client.set_aside(first.nodes[-1])
                gone = site.kill_node(first)
                training.wait_for_steps(nodes=1)
                assert training.run.attempts()[-1].nodes == [node for node in first.nodes if node != gone]
                site.give_back()
                if any(aside.node == gone for aside in client.cluster().set_aside):  # and is well again
                    client.give_back(gone)
                last = training.wait_for_steps(nodes=2)
                ended = training.end_after(last + 100)
                messages = [event.message for event in training.run.events()]
                assert any(message.startswith("it grows from 1 to 2 nodes") for message in messages), messages
            training.check(ended)
        finally:
            installation.close()
