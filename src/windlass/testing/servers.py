"""Real servers for tests, in processes of their own or in a thread: started, waited for, and nothing of them left."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import uvicorn

from windlass.agent import kernel
from windlass.engines.local import stop_launchers
from windlass.engines.local.sockets import socket_dir
from windlass.server.compose import Parts
from windlass.server.homefolder import read_note
from windlass.testing.nursery import Child, Nursery

_LOOK_EVERY_S = 0.01
_AS_MODULE = """
import runpy, sys
del sys.argv[:2]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
_nursery: Nursery | None = None


@dataclass(slots=True, kw_only=True)
class ServerProcess:
    """A running server process; `log` is what it wrote to its standard streams."""

    home: Path
    process: subprocess.Popen[bytes] | Child
    url: str
    token: str
    log: Path
    ready_s: float = field(default=0.0)  # from the start of the process to its first answer

    def client(self, *, timeout_s: float = 30.0) -> httpx.Client:
        """Trusts nothing of the environment: proxies are not for a server on this machine."""
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=timeout_s, trust_env=False)

    def kill(self) -> None:
        """As a crash would: no chance to clean up."""
        self.process.kill()
        self.process.wait()

    def terminate(self, *, timeout_s: float = 20.0) -> int:
        self.process.terminate()
        return self.process.wait(timeout_s)

    def cpu_s(self) -> float:
        """What it has used of a processor since its start."""
        found = kernel.stat(self.process.pid)
        if found is None:
            raise RuntimeError(f"the server is gone:\n{self.log.read_text(errors='replace')[-2000:]}")
        return found.cpu_s

    def rss_bytes(self) -> int:
        found = kernel.stat(self.process.pid)
        return found.rss_bytes if found else 0


def fork_servers() -> None:
    """From now on servers are forked from a process that has loaded their modules: for tests, which start hundreds."""
    global _nursery
    _nursery = Nursery("windlass.server.main", "windlass.server.compose")


def start_server(
    home: Path,
    *,
    arguments: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
    module: str = "windlass.server",
    cold: bool = False,
) -> ServerProcess:
    """Start a server for `home` on a free port and wait until it answers. The caller ends it; see `running_server`.

    `module` is another composition of a server, with the same options. `cold`: never forked."""
    home.mkdir(parents=True, exist_ok=True)
    log = home.with_name(f"{home.name}.server.log")
    began = time.monotonic()
    process = spawn_server(home, ["--port", "0", *arguments], environ=environ or {}, log=log, module=module, cold=cold)
    try:
        url = _wait_for_answer(home, process, log, deadline=began + timeout_s)
    except BaseException:
        process.kill()
        process.wait()
        raise
    token = home / "token"
    return ServerProcess(
        home=home,
        process=process,
        url=url,
        token=token.read_text() if token.exists() else "",
        log=log,
        ready_s=time.monotonic() - began,
    )


def spawn_server(
    home: Path,
    arguments: Sequence[str],
    *,
    environ: Mapping[str, str],
    log: Path,
    module: str = "windlass.server",
    cold: bool = False,
) -> subprocess.Popen[bytes] | Child:
    """The process alone, which may serve nothing: nobody waits for an answer of it."""
    words = ["-m", module, "--home", str(home), *arguments]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_")}
    whole = {**clean, **environ}
    with log.open("ab") as output:
        if _nursery is not None and not cold:
            return _nursery.start(_AS_MODULE, *words, environ=whole, output=output.fileno())
        return subprocess.Popen(
            [sys.executable, *words], env=whole, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )


@contextlib.contextmanager
def running_server(
    home: Path,
    *,
    arguments: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    module: str = "windlass.server",
    cold: bool = False,
) -> Iterator[ServerProcess]:
    """A server whose processes, and those of its runs, are all gone when the block ends."""
    try:
        server = start_server(home, arguments=arguments, environ=environ, module=module, cold=cold)
        try:
            yield server
        finally:
            if server.process.poll() is None:
                server.kill()
    finally:
        end_processes_of(home)


@contextlib.contextmanager
def serving(parts: Parts) -> Iterator[httpx.Client]:
    """The application of `parts`, served over HTTP by a thread of this process, and a client that has its token."""
    assert parts.app is not None, "a controller alone serves nothing"
    config = uvicorn.Config(parts.app, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread = threading.Thread(target=server.run, args=([listening],), name="serving")
        thread.start()
        headers = {"Authorization": f"Bearer {parts.services.token}"} if parts.services.token else {}
        try:
            with httpx.Client(base_url=url, headers=headers, timeout=30.0, trust_env=False) as client:
                yield client
        finally:
            parts.services.closing = True
            server.should_exit = True
            thread.join()


def end_processes_of(home: Path, *, timeout_s: float = 10.0) -> None:
    """Kill whatever a home has started and is still there: servers, launchers, supervisors, ranks."""
    stop_launchers(home)
    deadline = time.monotonic() + timeout_s
    while left := processes_of(home):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {left} of {home} do not end")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_EVERY_S)
    if (sockets := socket_dir(home)) != home:
        shutil.rmtree(sockets, ignore_errors=True)


def processes_of(home: Path) -> list[int]:
    """Living processes that name the home in their command line, or are marked as part of one of its attempts."""
    runs = home / "runs"
    marks = [f"{kernel.MARK}={name}." for name in os.listdir(runs)] if runs.is_dir() else []
    found = []
    for pid in kernel.all_pids():
        state = kernel.stat(pid)
        if pid == os.getpid() or state is None or state.state in "ZX":
            continue
        named = any(part == str(home) or part.startswith(f"{home}/") for part in _words(pid, "cmdline"))
        if named or (marks and any(word.startswith(tuple(marks)) for word in _words(pid, "environ"))):
            found.append(pid)
    return found


def _words(pid: int, name: str) -> list[str]:
    try:
        return os.fsdecode(Path(f"/proc/{pid}/{name}").read_bytes()).split("\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


def _wait_for_answer(home: Path, process: subprocess.Popen[bytes] | Child, log: Path, *, deadline: float) -> str:
    with httpx.Client(timeout=5.0, trust_env=False) as client:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with {process.returncode}:\n{log.read_text(errors='replace')}")
            note = read_note(home)
            if note.get("pid") == process.pid:
                with contextlib.suppress(httpx.TransportError):
                    if client.get(f"{note['url']}/health").status_code == 200:
                        return str(note["url"])
            time.sleep(_LOOK_EVERY_S)
    raise TimeoutError(f"the server does not answer:\n{log.read_text(errors='replace')}")
