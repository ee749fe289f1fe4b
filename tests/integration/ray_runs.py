"""Attempts on a real Ray cluster: a server that answers their relays, an engine, and nothing left of them."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.integration.away import await_that, is_gone
from windlass.agent import kernel
from windlass.agent.ports import free_port
from windlass.blobs.code import BlobCode
from windlass.blobs.local import LocalBlobs
from windlass.core.clock import SystemClock
from windlass.core.errors import Unavailable
from windlass.core.resources import Node, NodeShare, Placement
from windlass.db.database import Database, sqlite_url
from windlass.engines.contract import Engine, EngineContext, Launch, Observation, Phase
from windlass.engines.ray import RayEngine, open_engine
from windlass.engines.ray.head import MARK
from windlass.engines.ray.link import Link
from windlass.engines.ray.tables import Tables, node_names
from windlass.engines.remote.observing import stored_logs
from windlass.nodes.book import DatabaseNodeBook
from windlass.runs.sealing import Seal
from windlass.testing.ray import RayCluster
from windlass.testing.servers import ServerProcess, start_server
from windlass.tracking.logs import LogCursor, find_logs, read_page
from windlass.tracking.storedlogs import StoredLogs
from windlass.wire.ray import RayConfig

RUN_ID = "r-bcdfghjkmn"
PATIENCE_S = 60.0
CONNECT_PATIENCE_S = 200.0  # a fresh cluster's client server takes its time, and the first try may come to nothing
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


class RayRuns:
    """One server, and engines one after another: starting them takes longer than most tests."""

    def __init__(
        self, folder: Path, cluster: RayCluster, *, address: str | None = None, cpus: int | None = None
    ) -> None:
        self.cluster = cluster
        self.home = folder / "home"
        self.happened = threading.Event()
        self._database_url = sqlite_url(folder / "windlass.db")
        self._address = address or cluster.address
        self._cpus = cpus
        self._port = free_port()
        self.server = self.start_server()
        self.db = Database(self._database_url)
        self.book = DatabaseNodeBook(self.db, Seal(self.home / "secret.key"), SystemClock())
        self._engines: list[Engine] = []
        self._launched: dict[str, Launch | None] = {}
        self.engine = self.open_engine()

    def start_server(self) -> ServerProcess:
        self.server = start_server(
            self.home,
            arguments=["--role", "api", "--port", str(self._port)],
            environ={"WINDLASS_DATABASE_URL": self._database_url},
        )
        return self.server

    def open_engine(self) -> Engine:
        """One that has heard from Ray."""
        context = EngineContext(
            name="ray",
            home=self.home,
            clock=SystemClock(),
            notify=self.happened.set,
            code=BlobCode(LocalBlobs(self.home / "blobs")),
            nodes=self.book,
            server_url=f"http://127.0.0.1:{self._port}",
        )
        # Runs of other tests have other folders, and may have the same names.
        config = RayConfig(type="ray", address=self._address, namespace=f"test-{self._port}", cpus=self._cpus)
        engine = open_engine(config, context)
        self._engines.append(engine)
        self.await_that(lambda: bool(nodes_of(engine)), "nodes of Ray", timeout_s=CONNECT_PATIENCE_S)
        return engine

    def reopen(self) -> Engine:
        """As a server that was restarted would."""
        self.engine.close()
        self.engine = self.open_engine()
        return self.engine

    def start(
        self,
        *argv: str,
        nodes: Sequence[str] | None = None,
        cpus: float = 1.0,
        gpus: int = 0,
        workers: int = 1,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> str:
        number = len(self._launched) + 1
        names = nodes or [self.engine.inventory()[0].name]
        shares = tuple(
            NodeShare(node=name, cpus=cpus, memory_bytes=0, gpu_indices=tuple(range(gpus))) for name in names
        )
        settings: dict[str, Any] = {"self_launching": False, "grace_s": 5.0, **options}
        launch = Launch(
            run_id=RUN_ID,
            attempt_id=f"{RUN_ID}.{number}",
            attempt=number,
            placement=Placement(engine="ray", shares=shares),
            argv=argv,
            workers_per_node=workers,
            env={"PATH": PATH, **(env or {})},
            **settings,
        )
        self._launched[launch.attempt_id] = launch
        self.engine.launch(launch)
        return launch.attempt_id

    def look(self, attempt_id: str) -> Observation:
        return self.engine.poll([attempt_id])[attempt_id]

    def wait(self, attempt_id: str, phase: Phase = Phase.ENDED) -> Observation:
        def is_there() -> bool:
            seen = self.look(attempt_id)
            if phase is not Phase.ENDED:
                assert seen.phase is not Phase.ENDED, f"it has ended: {seen.exit}"
            if seen.phase is Phase.ABSENT:
                launch = self._launched[attempt_id]
                assert launch is not None
                self.engine.launch(launch)
            return seen.phase is phase

        self.await_that(is_there, f"{attempt_id} to be {phase}")
        return self.look(attempt_id)

    def phases_until(self, attempt_id: str, condition: Callable[[], bool], what: str) -> set[Phase]:
        """Every phase that an attempt is seen in while waiting; it may take as long as Ray's own time limits."""
        seen: set[Phase] = set()

        def is_there() -> bool:
            seen.add(self.look(attempt_id).phase)
            return condition()

        self.await_that(is_there, what, timeout_s=CONNECT_PATIENCE_S)
        return seen

    def log(self, attempt_id: str, *, nodes: int = 1) -> list[str]:
        stored = StoredLogs(self.db, LocalBlobs(self.home / "blobs"))
        files = find_logs({1: stored_logs(attempt_id, nodes)}, stored=stored)
        return [record.text for record in read_page(files, LogCursor(), limit=10**6)]

    def ranks(self, attempt_id: str, node_rank: int) -> list[int]:
        """The process ids of a node's ranks."""
        status = self.book.load([attempt_id])[attempt_id][node_rank].status
        return [rank["pid"] for rank in status["ranks"]] if status else []

    def tell_to_end(self, attempt_id: str, node_rank: int = 0) -> None:
        """For commands that go on until there is a file `stop`."""
        (Path(f"/proc/{self.ranks(attempt_id, node_rank)[0]}/cwd") / "stop").touch()

    def carrier(self, rank: int) -> int:
        """The process id of the actor that a rank is carried by. Above it are supervisor, relay and keeper, which is
        told who its masters are."""
        pid = rank
        for _ in range(3):
            found = kernel.stat(pid)
            assert found is not None
            pid = found.ppid
        return int(_read(pid, "cmdline").split(b"\0")[4].split(b",")[0])

    def driver(self) -> int:
        """The process id of the newest engine's driver; 0 while there is none."""
        mark = os.fsencode(str(self.home / "engines" / "ray"))
        found = [pid for pid in kernel.all_pids() if mark in _read(pid, "cmdline") and not is_gone(pid)]
        return max(found, default=0)

    def local_head(self) -> list[int]:
        """The processes of a head of our own."""
        mark = os.fsencode(f"{MARK}={self.home}/engines/ray")
        return [pid for pid in kernel.all_pids() if mark in _read(pid, "environ").split(b"\0") and not is_gone(pid)]

    def tables(self) -> Tables:
        found = self._link().tables()
        assert found is not None
        return found

    def node_id(self, name: str) -> str:
        return next(id for id, known in node_names(self.tables()).items() if known == name)

    def actor_nodes(self, attempt_id: str) -> list[str]:
        """The names of the nodes that the actors of an attempt are or were on, in order."""
        tables = self.tables()
        ours = sorted((name, actor) for name, actor in tables.actors.items() if f":{attempt_id}:" in name)
        return [node_names(tables)[actor.node_id] for _, actor in ours]

    def _link(self) -> Link:
        assert isinstance(self.engine, RayEngine)
        return self.engine._link

    def await_that(self, condition: Callable[[], bool], what: str, *, timeout_s: float = PATIENCE_S) -> None:
        await_that(condition, lambda: f"{what}\n{self.describe()}", timeout_s=timeout_s)

    def describe(self) -> str:
        """What is known, what relays said and what the driver said, for a test that fails."""
        said = [
            path.read_text(errors="replace")[-800:] for path in self.cluster.folder.glob("*/session_*/logs/worker*.err")
        ]
        parts = [str(self.book.load(list(self._launched)[-2:])), *said, self.driver_log()[-1000:]]
        return "\n".join(parts)

    def driver_log(self) -> str:
        return (self.home / "engines" / "ray" / "driver.log").read_text(errors="replace")

    def note(self, attempt_id: str) -> None:
        """An attempt that somebody else has launched is to be released too."""
        self._launched.setdefault(attempt_id, None)

    def launched(self) -> list[str]:
        return list(self._launched)

    def release_all(self) -> None:
        """Ends every attempt; their numbers are not used again."""
        for attempt_id in self._launched:
            self.await_that(functools.partial(self._released, attempt_id), f"{attempt_id} to be released")

    def clean_up(self) -> None:
        try:
            self.release_all()
        finally:
            for engine in self._engines:
                engine.close()
            self.server.kill()
            self.db.close()

    def _released(self, attempt_id: str) -> bool:
        try:
            self.engine.release(attempt_id)
        except Unavailable:
            return False
        return True


def nodes_of(engine: Engine) -> Sequence[Node]:
    try:
        return engine.inventory()
    except Unavailable:
        return ()


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
