"""Running attempts on a real LocalEngine in a folder of its own, and leaving nothing behind."""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from windlass.agent import kernel, layout
from windlass.agent.files import read_json
from windlass.core.clock import Clock, SystemClock
from windlass.core.resources import NodeShare, Placement
from windlass.engines.contract import Launch, Observation, Phase
from windlass.engines.folders.plans import attempt_dir
from windlass.engines.local import LocalEngine, stop_launchers
from windlass.engines.local.sockets import socket_dir

RUN_ID = "r-bcdfghjkmn"
PATIENCE_S = 30.0
INTERPRETER_PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
_RECORD = re.compile(rb"^\S+ ([oe])(\+?) (.*)$", re.DOTALL)


class LocalRuns:
    """A home, an engine over it, a working folder, and the attempts that were started."""

    def __init__(self, folder: Path, *, nodes: int = 1, preimport: Sequence[str] = ()) -> None:
        self.home = folder / "home"
        self.work = folder / "work"
        self.work.mkdir(parents=True)
        self.nodes = nodes
        self._preimport = tuple(preimport)
        self.happened = threading.Event()
        self.warm_env: dict[str, str] = {}
        self._engines: list[LocalEngine] = []
        self._launched: dict[str, Launch] = {}
        self.engine = self.open_engine(SystemClock())

    def open_engine(self, clock: Clock) -> LocalEngine:
        engine = LocalEngine(
            self.home,
            self.home / "blobs",
            notify=self.happened.set,
            clock=clock,
            nodes=self.nodes,
            preimport=self._preimport,
        )
        self._engines.append(engine)
        return engine

    def script(self, name: str, text: str) -> str:
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return name

    def start(
        self,
        *argv: str,
        workers: int = 1,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        memory_bytes: int = 0,
        **options: Any,
    ) -> str:
        number = len(self._launched) + 1
        names = [node.name for node in self.engine.inventory()]
        shares = tuple(NodeShare(node=name, cpus=1.0, memory_bytes=memory_bytes) for name in names)
        settings: dict[str, Any] = {"workdir": str(self.work), "self_launching": False, "grace_s": 5.0, **options}
        launch = Launch(
            run_id=RUN_ID,
            attempt_id=f"{RUN_ID}.{number}",
            attempt=number,
            placement=Placement(engine="local", shares=shares),
            argv=argv,
            workers_per_node=workers,
            env={"HOME": str(self.home), **(env or {})},
            secrets=secrets or {},
            search_path=INTERPRETER_PATH,
            **settings,
        )
        self._launched[launch.attempt_id] = launch
        self.engine.launch(launch)
        return launch.attempt_id

    def launch_again(self, attempt_id: str) -> None:
        self.engine.launch(self._launched[attempt_id])

    def look(self, attempt_id: str) -> Observation:
        return self.engine.poll([attempt_id])[attempt_id]

    def wait(self, attempt_id: str, phase: Phase = Phase.ENDED) -> Observation:
        """As a controller would: what turns out to be absent is launched again."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            seen = self.look(attempt_id)
            if seen.phase is phase:
                return seen
            assert seen.phase is not Phase.ENDED, f"it has ended: {seen.exit}"
            if seen.phase is Phase.ABSENT:
                self.launch_again(attempt_id)
            assert time.monotonic() < deadline, f"still {seen.phase} after {PATIENCE_S} s"
            self.happened.wait(0.02)
            self.happened.clear()

    def run(self, *argv: str, **options: Any) -> Observation:
        return self.wait(self.start(*argv, **options))

    def wait_for_text(self, attempt_id: str, text: str, *, rank: int = 0) -> None:
        wait_for(lambda: text in self.log(attempt_id, rank=rank), f"{text!r} in the log of {attempt_id}")

    def node_dir(self, attempt_id: str, node: int = 0) -> Path:
        return attempt_dir(self.home, attempt_id) / f"node-{node}"

    def status(self, attempt_id: str, node: int = 0) -> dict[str, Any]:
        status = read_json(str(self.node_dir(attempt_id, node) / layout.STATUS))
        assert status is not None
        return status

    def outcome(self, attempt_id: str, node: int = 0) -> dict[str, Any]:
        outcome = read_json(str(self.node_dir(attempt_id, node) / layout.OUTCOME))
        assert outcome is not None
        return outcome

    def log(self, attempt_id: str, *, rank: int = 0, node: int = 0) -> str:
        path = self.node_dir(attempt_id, node) / layout.rank_log(rank)
        return path.read_text(errors="replace") if path.exists() else ""

    def output(self, attempt_id: str, *, rank: int = 0, node: int = 0, stream: str = "o") -> bytes:
        """What the rank wrote, put together again from its log."""
        data = (self.node_dir(attempt_id, node) / layout.rank_log(rank)).read_bytes()
        parts = []
        for line in data.split(b"\n")[:-1]:
            record = _RECORD.match(line)
            assert record, line[:200]
            if record[1] == stream.encode():
                parts.append(record[3] + (b"" if record[2] else b"\n"))
        return b"".join(parts)

    def output_words(self, attempt_id: str) -> list[str]:
        return self.log(attempt_id).split()

    def make_warm(self, module: str) -> None:
        """Have a launcher ready that has loaded `module`; scripts that import it then run in place."""
        folder = self.work.parent / "modules"
        folder.mkdir(exist_ok=True)
        (folder / f"{module}.py").write_text("loaded_in = __import__('os').getpid()\n")
        self.warm_env = {"PYTHONPATH": str(folder)}
        self.run("python", self.script("warming.py", f"import {module}\n"), env=self.warm_env)
        wait_for(self.warm_launcher, "the launcher to be ready")

    def processes(self) -> list[int]:
        """Every process that was started for an attempt of this home and still lives."""
        mark = f"WINDLASS_NODE_ID={RUN_ID}".encode()
        here = str(self.home).encode()
        return [pid for pid in kernel.all_pids() if _environ(pid).find(mark) >= 0 and here in _environ(pid)]

    def launchers(self) -> list[dict[str, Any]]:
        states = [read_json(str(path)) for path in sorted(socket_dir(self.home).glob("warm/*.sock.json"))]
        return [state for state in states if state and kernel.is_alive(state["pid"], state["pid_start"])]

    def warm_launcher(self) -> dict[str, Any] | None:
        """The one with an interpreter, once it is ready."""
        found = [state for state in self.launchers() if state["interpreter"] and state["state"] == "ready"]
        return found[0] if found else None

    def clean_up(self) -> None:
        for folder in self.home.glob("runs/*/attempts/*"):
            self._engines[-1].release(f"{folder.parents[1].name}.{folder.name}")
        for engine in self._engines:
            engine.close()
        stop_launchers(self.home)
        if socket_dir(self.home) != self.home:  # a folder elsewhere, because this one's path is long
            shutil.rmtree(socket_dir(self.home))


def wait_for(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S} s in vain for {what}"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    found = kernel.stat(pid)
    return found is not None and found.state not in "ZX"


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
