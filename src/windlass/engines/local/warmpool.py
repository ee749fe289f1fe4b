"""The launchers of a home: which one an attempt goes through, starting them, and letting the unused ones go.

Every supervisor is forked by a launcher. The plain one has nothing loaded and executes all commands; a warm one has
an environment's slow modules loaded and runs Python scripts in place.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import windlass
from windlass.agent import kernel
from windlass.agent.command import CannotStart, resolve_command, shebang
from windlass.agent.environ import rank_environment
from windlass.agent.files import read_json
from windlass.agent.target import READ_AT_IMPORT, canonical, warm_target
from windlass.core.errors import Unavailable
from windlass.engines.local.sockets import socket_dir
from windlass.engines.local.source import Need, decide_need, read_entry

PREIMPORT = ("numpy", "torch")
# What `windlass.job` needs of torch besides, to save and to spread a model. With torch loaded already it takes as long
# again, in every rank; one that starts again in place should not wait for it.
_WITH_TORCH = (
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.pipelining",
)
_AGENT = Path(kernel.__file__).with_name("__main__.py")
_MOST_WARM = 4
_MOST_FAILURES = 3
_BACKLOG = 1024
_HANDOVER_TIMEOUT_S = 0.3
_START_PATIENCE_S = 5.0  # for an interpreter to come so far as to say who it is
_STOP_PATIENCE_S = 3.0
_MORE_NAMES = ("VIRTUAL_ENV", "CONDA_PREFIX", "LANG")
_NEEDED_NAMES = ("PATH", "HOME", "USER", "TMPDIR")


def _agent_identity() -> str:
    """Changes with the agent's code: a launcher of an earlier version is not to be used any more."""
    files = sorted(_AGENT.parent.glob("*.py"))
    content = [windlass.__version__, *((str(path), path.stat().st_mtime_ns) for path in files)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


_IDENTITY = _agent_identity()
PLAIN = f"plain-{_IDENTITY[:10]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmEnvironment:
    """An interpreter and what of the environment it reads when it and its libraries are loaded."""

    interpreter: str
    env: Mapping[str, str]

    @property
    def name(self) -> str:
        found = os.stat(self.interpreter)
        identity = [
            _IDENTITY,
            self.interpreter,
            [found.st_ino, found.st_mtime_ns],
            sorted((name, value) for name, value in self.env.items() if name not in ("PATH", "USER", "TMPDIR")),
        ]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]


def decide_warm_environment(plan: Mapping[str, Any], secrets: Mapping[str, str]) -> WarmEnvironment | None:
    """The environment whose warm launcher could run the plan; None if its command has to be executed."""
    env = rank_environment(plan, 0)
    if any(_read_at_import(name) for name in secrets):
        return None
    try:
        program = resolve_command(plan["argv"][:1], env.get("PATH", os.defpath), plan["workdir"])
    except CannotStart:
        return None  # the supervisor will say why
    if warm_target(plan["argv"], program=program, interpreter=canonical(program)) is None:
        return None
    if shebang(program):
        return None  # a shim or wrapper: what it does before it becomes an interpreter is its own affair
    kept = {name: value for name, value in env.items() if _read_at_import(name) or name in _NEEDED_NAMES}
    return WarmEnvironment(interpreter=canonical(program), env=kept)


def _read_at_import(name: str) -> bool:
    return name.startswith((*READ_AT_IMPORT, "LC_")) or name in _MORE_NAMES


class WarmPool:
    def __init__(self, home: Path, *, preimport: Sequence[str] = PREIMPORT, idle_s: float = 1800.0) -> None:
        self._folder = _folder(home)
        self._logs = home / "warm"
        self._preimport = tuple(preimport)
        self._idle_s = idle_s
        self._starting: list[subprocess.Popen[bytes]] = []
        self._started_at: dict[str, float] = {}
        self._failures: Counter[str] = Counter()

    def hand_over(self, plan: Mapping[str, Any], secrets: Mapping[str, str], *, warm: bool) -> str:
        """Ask a launcher for the plan's supervisor; which one was asked. Nobody waits for it to be done."""
        environment = decide_warm_environment(plan, secrets) if warm else None
        request = _request(plan, secrets)
        if environment is not None:
            name = environment.name
            if self._should_use(name, environment, plan) and self._send(name, request):
                return name
        if not self.is_there(PLAIN):
            self._start(PLAIN, [sys.executable, "-I", "-S"], {}, "", ())
        if not self._send(PLAIN, request):
            self.start_directly(plan, secrets)
        return PLAIN

    def start_directly(self, plan: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
        """A supervisor without any launcher: slower, and there is nothing left that could be in the way."""
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_AGENT), "supervise", plan["node_dir"]],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        assert process.stdin is not None
        with process.stdin as stdin:
            stdin.write(json.dumps(dict(secrets)).encode() + b"\n")
        self._starting.append(process)

    def is_there(self, name: str) -> bool:
        """Whether the launcher lives, or has just been started and may not have come to say so."""
        state = _state(self._folder, name)
        if state is not None and _is_living(state):
            return True
        if state is not None or not _socket_path(self._folder, name).exists():
            return False
        return time.monotonic() - self._started_at.get(name, -_START_PATIENCE_S) < _START_PATIENCE_S

    def close(self) -> None:
        for process in self._starting:
            process.wait()  # it only starts another process; that takes milliseconds
        self._starting.clear()

    def _should_use(self, name: str, environment: WarmEnvironment, plan: Mapping[str, Any]) -> bool:
        need = decide_need(read_entry(plan), self._preimport)
        state = _state(self._folder, name)
        if need is Need.NONE or (state is not None and state["state"] == "unfit"):
            return False
        if not self.is_there(name):
            if self._failures[name] >= _MOST_FAILURES:
                return False
            self._make_room()
            env = {**environment.env, kernel.MARK: kernel.MARK_PLACEHOLDER}
            self._start(name, [environment.interpreter], env, environment.interpreter, self._preimport)
        elif state is not None and state["state"] == "ready":
            self._failures.pop(name, None)
            os.utime(_state_path(self._folder, name))
            return True
        # Not ready yet. A script that needs the modules waits for them here, where they are loaded once for all
        # ranks; one that may not need them does not wait.
        return need is Need.CERTAIN

    def _start(
        self, name: str, command: list[str], env: Mapping[str, str], interpreter: str, preimport: Sequence[str]
    ) -> None:
        """The socket is listening before the interpreter is even loaded: requests wait in its backlog."""
        path = _socket_path(self._folder, name)
        if path.exists():  # one that leaves by itself takes it along
            self._failures[name] += 1
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        for stale in (path, _state_path(self._folder, name)):
            stale.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener, open(self._logs / f"{name}.log", "ab") as log:
            listener.bind(str(path))
            listener.listen(_BACKLOG)
            fd = listener.fileno()
            options = ["--fd", str(fd), "--socket", str(path), "--interpreter", interpreter]
            later = _WITH_TORCH if "torch" in preimport else ()
            options += ["--preimport", ",".join(preimport), "--later", ",".join(later), "--idle-s", str(self._idle_s)]
            process = subprocess.Popen(
                [*command, str(_AGENT), "warm", *options],
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                pass_fds=[fd],
                start_new_session=True,
            )
        self._starting.append(process)
        self._started_at[name] = time.monotonic()

    def _send(self, name: str, request: bytes) -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_HANDOVER_TIMEOUT_S)
            try:
                connection.connect(str(_socket_path(self._folder, name)))
                connection.sendall(request)
            except OSError:
                return False  # it has just gone, or has more to do than it can queue
        return True

    def _make_room(self) -> None:
        """Take the least recently used launcher out of reach; it serves what it has accepted, and leaves."""
        states = [path for path in self._folder.glob("*.sock.json") if not path.name.startswith("plain-")]
        states.sort(key=lambda path: path.stat().st_mtime)
        for path in states[: max(0, len(states) - _MOST_WARM + 1)]:
            path.with_suffix("").unlink(missing_ok=True)
            path.unlink(missing_ok=True)

    def reap(self) -> None:
        """What was started here leaves a process that ends at once, and its end has to be taken note of."""
        self._starting = [process for process in self._starting if process.poll() is None]


def stop_launchers(home: Path) -> None:
    """End every launcher of a home; returns when they are gone. Attempts go on running."""
    folder = _folder(home)
    living = []
    for path in folder.glob("*.sock"):
        state = _state(folder, path.stem)
        path.unlink(missing_ok=True)  # one that has not said who it is yet sees this and leaves by itself
        if state is not None and _is_living(state):
            os.kill(state["pid"], signal.SIGTERM)
            living.append(state)
        _state_path(folder, path.stem).unlink(missing_ok=True)
    deadline = time.monotonic() + _STOP_PATIENCE_S
    while living := [state for state in living if _is_living(state)]:
        if time.monotonic() > deadline:
            raise Unavailable(f"launcher {living[0]['pid']} does not end")
        time.sleep(0.005)


def _folder(home: Path) -> Path:
    return socket_dir(home) / "warm"


def _socket_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.sock"


def _state_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.sock.json"


def _state(folder: Path, name: str) -> dict[str, Any] | None:
    return read_json(str(_state_path(folder, name)))


def _is_living(state: Mapping[str, Any]) -> bool:
    return bool(state["boot_id"] == kernel.boot_id() and kernel.is_alive(state["pid"], state["pid_start"]))


def _request(plan: Mapping[str, Any], secrets: Mapping[str, str]) -> bytes:
    return json.dumps({"node_dir": plan["node_dir"], "secrets": dict(secrets)}).encode() + b"\n"
