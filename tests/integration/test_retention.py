"""What is deleted some time after the end, and what never is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from httpx import Client
from sqlalchemy import update

from tests.integration.away import await_that
from windlass.agent import layout
from windlass.core.clock import SystemClock
from windlass.db.database import Database
from windlass.nodes import store
from windlass.runs.tables import attempts
from windlass.server.retention import Retention
from windlass.testing.clock import FakeClock
from windlass.testing.servers import ServerProcess, end_processes_of, start_server

KEEP_S = 3_600.0


class Site:
    """A server that archives the logs of its own machine's runs, and the database below it."""

    def __init__(self, folder: Path, database_url: str, server: ServerProcess, client: Client) -> None:
        self.home = folder / "home"
        self.server = server
        self.client = client
        self.db = Database(database_url)
        self.clock = FakeClock(SystemClock().now())

    def run(self) -> str:
        """To its end, and until its logs are archived."""
        spec = {"command": "echo kept; echo mine > file", "code": None}
        run_id: str = self.client.post("/api/runs", json={"spec": spec}).raise_for_status().json()["id"]
        await_that(lambda: all(place.startswith("stored://") for place in self.places(run_id)) and self.is_over(run_id))
        return run_id

    def is_over(self, run_id: str) -> bool:
        return bool(self.client.get(f"/api/runs/{run_id}").json()["state"] == "succeeded" and self.places(run_id))

    def places(self, run_id: str) -> list[str]:
        (attempt,) = self.client.get(f"/api/runs/{run_id}/attempts").json()["attempts"] or [{"log_dirs": []}]
        return list(attempt["log_dirs"])

    def folder(self, run_id: str) -> Path:
        return self.home / "runs" / run_id / "attempts" / "1"

    def logs(self, run_id: str) -> list[str]:
        return [line["text"] for line in self.client.get(f"/api/runs/{run_id}/logs").json()["lines"]]

    def sweep(self) -> None:
        Retention(self.db, self.clock, roots=[self.home], keep_s=KEEP_S).sweep()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    url = f"sqlite:///{tmp_path / 'windlass.db'}"
    config = tmp_path / "windlass.yaml"
    config.write_text(
        f"database: {{url: '{url}'}}\nlogs: {{archive: always}}\nengines: {{here: {{type: local, warm: false}}}}\n"
    )
    with ExitStack() as stack:
        stack.callback(end_processes_of, tmp_path / "home")
        server = start_server(tmp_path / "home", arguments=["--config", str(config)])
        stack.callback(server.kill)
        found = Site(tmp_path, url, server, stack.enter_context(server.client()))
        stack.callback(found.db.close)
        yield found


def test_folders_go_some_time_after_their_logs_were_archived(site: Site) -> None:
    run = site.run()
    site.sweep()
    assert (site.folder(run) / "node-0" / layout.rank_log(0)).exists()
    site.clock.advance(2 * KEEP_S)
    for _ in range(2):
        site.sweep()
        assert not site.folder(run).exists()
    assert site.logs(run) == ["kept"]
    assert next((site.home / "runs" / run).rglob("file")).read_text() == "mine\n"  # its working folder is the user's


def test_what_is_not_archived_stays_for_ever(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    never, grown, strange, gone = (site.run() for _ in range(4))
    site.server.kill()  # it would archive it again
    with site.db.write() as tx:
        tx.execute(update(attempts).where(attempts.c.run_id == never).values(archived_at=None))
    log = site.folder(grown) / "node-0" / layout.rank_log(0)
    with log.open("a") as file:
        file.write("what came later\n")
    (site.folder(strange) / "node-of-mine").mkdir()
    site.clock.advance(1_000 * KEEP_S)
    site.sweep()
    assert not site.folder(gone).exists()
    assert site.folder(never).exists()
    assert log.exists()
    assert site.folder(strange).exists()
    told = f"the folder of attempt {grown}.1 stays: node-0/rank-0.log has more than the archive"
    assert told in [record.getMessage() for record in caplog.records]


def test_reports_of_nodes_go_some_time_after_they_were_closed(database: Database, clock: FakeClock) -> None:
    plans = [{"run_id": "r-a"}, {"run_id": "r-a"}]
    with database.write() as tx:
        for attempt_id in ("r-a.1", "r-a.2", "r-a.3"):
            store.insert_nodes(tx, attempt_id, plans, None)
        store.close(tx, "r-a.1", now=clock.now())
        store.close(tx, "r-a.2", now=clock.now() + KEEP_S)
    clock.advance(1.5 * KEEP_S)
    for _ in range(2):
        Retention(database, clock, roots=[], keep_s=KEEP_S).sweep()
        with database.read() as tx:
            assert [len(store.load_nodes(tx, f"r-a.{number}")) for number in (1, 2, 3)] == [0, 2, 2]
