"""Running attempts on a real Slurm in a shared folder of their own, and leaving nothing behind."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from windlass.agent import kernel, layout
from windlass.agent.files import read_json
from windlass.core.clock import SystemClock
from windlass.core.resources import NodeShare, Placement
from windlass.engines.contract import EngineContext, Launch, Observation, Phase
from windlass.engines.folders.plans import attempt_dir
from windlass.engines.slurm import SlurmEngine, open_engine
from windlass.testing.slurm import SlurmCluster
from windlass.wire.slurm import SlurmConfig

RUN_ID = "r-bcdfghjkmn"
PATIENCE_S = 120.0
SEARCH_PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


class NoCode:
    """A CodeStore for runs that bring none."""

    def lay_in(self, digest: str, folder: Path) -> None:  # noqa: ARG002
        raise AssertionError("these runs have no code")


class SlurmRuns:
    def __init__(self, cluster: SlurmCluster, folder: Path, **settings: Any) -> None:
        self.cluster = cluster
        self.shared = folder / "shared"
        self.work = folder / "work"
        self.work.mkdir(parents=True)
        self.happened = threading.Event()
        self._settings = {"poll_interval_s": 0.2, "settle_s": 1.0, **settings}
        self._engines: list[SlurmEngine] = []
        self._launched: dict[str, Launch] = {}
        self.engine = self.open_engine()

    def open_engine(self, **settings: Any) -> SlurmEngine:
        config = SlurmConfig(
            type="slurm", shared_dir=self.shared, conf=self.cluster.conf, **{**self._settings, **settings}
        )
        context = EngineContext(
            name="hpc",
            home=self.shared.parent / "home",
            clock=SystemClock(),
            notify=self.happened.set,
            code=NoCode(),
            nodes=None,  # type: ignore[arg-type]  # of no use to an engine with a shared folder
            server_url=None,
        )
        engine = open_engine(config, context)
        self._engines.append(engine)
        return engine

    def start(
        self,
        *argv: str,
        nodes: tuple[str, ...] = ("n1",),
        workers: int = 1,
        env: Mapping[str, str] | None = None,
        gpus: int = 0,
        cpus: float = 1.0,
        run_id: str = RUN_ID,
        **options: Any,
    ) -> str:
        launch = self.render(
            *argv, nodes=nodes, workers=workers, env=env, gpus=gpus, cpus=cpus, run_id=run_id, **options
        )
        self.engine.launch(launch)
        return launch.attempt_id

    def render(
        self,
        *argv: str,
        nodes: tuple[str, ...] = ("n1",),
        workers: int = 1,
        env: Mapping[str, str] | None = None,
        gpus: int = 0,
        cpus: float = 1.0,
        run_id: str = RUN_ID,
        **options: Any,
    ) -> Launch:
        number = 1 + sum(launch.run_id == run_id for launch in self._launched.values())
        shares = tuple(
            NodeShare(node=name, cpus=cpus, memory_bytes=0, gpu_indices=tuple(range(gpus))) for name in nodes
        )
        settings: dict[str, Any] = {"workdir": str(self.work), "self_launching": False, "grace_s": 5.0, **options}
        launch = Launch(
            run_id=run_id,
            attempt_id=f"{run_id}.{number}",
            attempt=number,
            placement=Placement(engine="hpc", shares=shares),
            argv=argv,
            workers_per_node=workers,
            env=dict(env or {}),
            search_path=SEARCH_PATH,
            **settings,
        )
        self._launched[launch.attempt_id] = launch
        return launch

    def shell(self, text: str, **options: Any) -> str:
        return self.start("/bin/sh", "-c", text, **options)

    def script(self, name: str, text: str) -> str:
        (self.work / name).write_text(text)
        return name

    def launch_again(self, attempt_id: str) -> None:
        self.engine.launch(self._launched[attempt_id])

    def look(self, attempt_id: str) -> Observation:
        return self.engine.poll([attempt_id])[attempt_id]

    def wait(self, attempt_id: str, phase: Phase = Phase.ENDED) -> Observation:
        deadline = time.monotonic() + PATIENCE_S
        while (seen := self.look(attempt_id)).phase is not phase:
            assert seen.phase is not Phase.ENDED, f"it has ended: {seen.exit}"
            assert time.monotonic() < deadline, f"still {seen} after {PATIENCE_S} s; {self.slurm_log(attempt_id)}"
            self.happened.wait(0.05)
            self.happened.clear()
        return seen

    def wait_for_text(self, attempt_id: str, text: str, *, rank: int = 0, node: int = 0) -> None:
        wait_for(lambda: text in self.log(attempt_id, rank=rank, node=node), f"{text!r} in the log of {attempt_id}")

    def folder(self, attempt_id: str) -> Path:
        return attempt_dir(self.shared, attempt_id)

    def job_id(self, attempt_id: str) -> str:
        job = read_json(str(self.folder(attempt_id) / "job.json"))
        assert job is not None
        return str(job["job_id"])

    def status(self, attempt_id: str, node: int = 0) -> dict[str, Any]:
        status = read_json(str(self.folder(attempt_id) / f"node-{node}" / layout.STATUS))
        assert status is not None
        return status

    def log(self, attempt_id: str, *, rank: int = 0, node: int = 0) -> str:
        path = self.folder(attempt_id) / f"node-{node}" / layout.rank_log(rank)
        return path.read_text(errors="replace") if path.exists() else ""

    def slurm_log(self, attempt_id: str) -> str:
        path = self.folder(attempt_id) / "slurm.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def processes(self) -> list[int]:
        """Every process that was started for an attempt in this folder and still lives."""
        here = f"WINDLASS_NODE_DIR={self.shared}".encode()
        return [pid for pid in kernel.all_pids() if here in _environ(pid) and is_running(pid)]

    def clean_up(self) -> None:
        self.cluster.recover()
        for engine in self._engines:
            engine.close()
        wait_for(lambda: not self.processes(), "all ranks to be gone")


def wait_for(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S} s in vain for {what}"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    found = kernel.stat(pid)
    return found is not None and found.state not in "ZX"


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def temporary_folder() -> Path:
    """One that other users can enter, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="windlass-shared-"))
    folder.chmod(0o755)
    return folder
