"""The command as people and scripts use it: in a pipe against a real server, and on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from windlass.testing import servers

WINDLASS = [sys.executable, "-c", "from windlass.cli.main import main; main()"]
TRAIN = """
import os, sys, time
from windlass import job
print("hello", *sys.argv[1:], job.params.get("word", ""), flush=True)
print("oops", file=sys.stderr)
for step in range(1, 4):
    job.log(step, total=3, loss=1 / step)
while job.params.get("forever"):
    time.sleep(0.05)
sys.exit(int(job.params.get("code", 0)))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cli:
    home: Path
    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        return os.environ | {"WINDLASS_HOME": str(self.home), "COLUMNS": "100", "TERM": "xterm"}

    def __call__(self, *words: str, expect: int | None = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*WINDLASS, *words],
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert expect is None or done.returncode == expect, (done.returncode, done.stdout, done.stderr)
        return done

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json").stdout)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with servers.running_server(tmp_path_factory.mktemp("cli") / "home") as server:
        yield server.home


@pytest.fixture
def cli(home: Path, tmp_path: Path) -> Cli:
    (tmp_path / "train.py").write_text(TRAIN)
    return Cli(home=home, folder=tmp_path)


def eventually(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "not within the time"
        time.sleep(0.05)


def test_run_prints_the_runs_output_and_nothing_of_ours_on_stdout(cli: Cli) -> None:
    done = cli("run", "--param", "word=3e-4", "train.py", "--flag", "x")
    assert done.stdout == "hello --flag x 0.0003\n"
    first, blank, headline, *record = done.stderr.splitlines()
    assert (first, blank) == ("oops", "")
    assert re.fullmatch(r"✓ \S+  r-\w+  succeeded in [\d.]+ m?s", headline)
    assert [line.split()[0] for line in record] == ["attempts", "metrics", "compute", "logs", "next:"]


def test_run_exits_with_the_runs_exit_code(cli: Cli) -> None:
    assert "failed" in cli("run", "-p", "code=3", "train.py", expect=3).stderr
    cli("run", "--retries", "0", "--", "sh", "-c", "kill -9 $$", expect=137)
    assert "no command 'no-such-command-here'" in cli("run", "--", "no-such-command-here", expect=127).stderr


def test_ranks_are_told_apart_when_there_are_several(cli: Cli) -> None:
    done = cli("run", "--nproc", "2", "train.py")
    assert sorted(done.stdout.splitlines()) == ["[0] hello ", "[1] hello "]


def test_a_detached_run_and_everything_that_can_be_asked_of_it(cli: Cli) -> None:
    run_id = cli("run", "-d", "--name", "asked", "--tag", "team=x", "-p", "word=w", "train.py").stdout.strip()
    assert re.fullmatch(r"r-\w{10}", run_id)
    assert cli("logs", "-f", run_id).stdout == "hello w\n"
    assert cli("logs", "asked", "--tail", "1", "--rank", "0").stdout in ("hello w\n", "")
    lines = [json.loads(line) for line in cli("logs", run_id[:8], "--json").stdout.splitlines()]
    assert {line["text"] for line in lines} == {"hello w", "oops"}
    eventually(lambda: cli.json("show", run_id)["state"] == "succeeded")
    record = cli.json("show", "asked")
    assert (record["id"], record["tags"], record["metrics"]["loss"]["count"]) == (run_id, {"team": "x"}, 3)
    assert record["attempt_list"][0]["exit"]["reason"] == "completed"
    shown = cli("show", run_id).stdout
    for part in ("✓ asked", "word=w", "1 → 0.3333", "team=x", "CPU seconds", "completed"):
        assert part in shown
    assert "\x1b" not in shown
    assert cli.json("why", run_id)["state"] == "succeeded"
    assert run_id in cli("ps", "-a").stdout
    assert run_id in [run["id"] for run in cli.json("ps", "--state", "succeeded")]
    assert run_id not in [run["id"] for run in cli.json("ps")]


def test_submit_cancel_resume_clone(cli: Cli) -> None:
    (cli.folder / "spec.yaml").write_text("name: spec\nscript: train.py\nparams: {forever: true}\nsecrets: [KEY]\n")
    missing = cli("submit", "spec.yaml", expect=2)
    assert "no value for the secret KEY" in missing.stderr
    run_id = cli.json("submit", "spec.yaml", "--secret", "KEY=hunter22")["id"]
    eventually(lambda: cli.json("show", run_id)["progress"] is not None)
    assert cli.json("cancel", run_id, "--grace", "1s")[0]["id"] == run_id
    eventually(lambda: cli.json("show", run_id)["state"] == "cancelled")
    assert cli("resume", run_id).stdout.strip() == run_id
    clone = cli("clone", run_id, "--set", "forever=false", "--set", "params.code=4", "--name", "cloned", "-f", expect=4)
    assert clone.stdout == "hello \n"
    assert cli.json("show", "cloned")["clone_of"] == run_id
    cli("cancel", run_id, "--grace", "0s")
    eventually(lambda: cli.json("show", run_id)["state"] == "cancelled")
    assert len(cli.json("show", run_id)["attempt_list"]) == 2


def test_cancelling_several_does_what_it_can(cli: Cli) -> None:
    run_id = cli("run", "-d", "-p", "forever=true", "train.py").stdout.strip()
    done = cli("cancel", "nothing-like-it", run_id, "--grace", "0s", expect=2)
    assert run_id in done.stdout
    assert "there is no run 'nothing-like-it'" in done.stderr


def test_cluster_doctor_and_version(cli: Cli) -> None:
    assert cli.json("cluster")["nodes"][0]["cpus"] > 0
    assert "running" in cli("cluster").stdout
    assert cli.json("queue")["entries"] == []
    name = cli.json("nodes", "ls")["nodes"][0]["name"]
    assert "set aside for" in cli("nodes", "set-aside", name, "--for", "2h", "--reason", "a new fan").stdout
    assert "a new fan" in cli("cluster").stdout
    assert "a new fan" in cli("nodes", "ls").stdout
    assert "a new fan" in cli("nodes", "give-back", name).stdout
    assert cli.json("nodes", "ls")["set_aside"] == []
    checks = {check["name"]: check["status"] for check in cli.json("doctor")}
    assert checks["server"] == checks["controller"] == checks["database"] == checks["home"] == "ok"
    assert cli("version").stdout == cli("--version").stdout
    assert cli.json("version")["windlass"] in cli("version").stdout


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("show", "asekd"), 2, "error: there is no run 'asekd'"),
        (("sumbit", "x"), 2, "Did you mean 'submit'"),
        (("run",), 2, "nothing to run"),
        (("run", "trian.py"), 2, "did you mean train.py?"),
        (("run", "--env", "X", "train.py"), 2, "--env 'X': write it as NAME=VALUE"),
        (("run", "--secret", "NOT_SET_ANYWHERE", "train.py"), 2, "no variable NOT_SET_ANYWHERE"),
        (("run", "--cpus", "100000", "train.py"), 2, "error:"),
        (("run", "--priority", "urgent", "train.py"), 2, "priority"),
        (("submit", "no.yaml"), 2, "No such file"),
        (("cancel", "x", "--grace", "soon"), 2, "--grace: 'soon' is not a duration"),
        (("ps", "--state", "runing"), 2, "did you mean 'running'?"),
        (("watch", "x"), 2, "watch needs a terminal"),
        (("--url", "http://127.0.0.1:1", "ps"), 4, "cannot be reached"),
        (("--url", "nonsense", "ps"), 2, "is not a server url"),
        (("--home", "/nowhere/at/all", "ps"), 4, "no server is running"),
        (("up", "--no-auth", "--host", "0.0.0.0"), 2, "--no-auth"),
        (("up",), 1, "runs already"),
    ],
)
def test_mistakes_are_explained(cli: Cli, words: tuple[str, ...], code: int, message: str) -> None:
    done = cli(*words, expect=code)
    assert done.stdout == ""
    assert message in " ".join(done.stderr.split())


def test_a_problem_in_a_spec_file_has_its_line(cli: Cli) -> None:
    (cli.folder / "bad.yaml").write_text("script: train.py\nresorces: {}\ntimeout: soon\n")
    done = cli("submit", "bad.yaml", expect=2)
    assert "error: bad.yaml:2: unknown key `resorces`; did you mean `resources`?\n" in done.stderr
    assert "error: bad.yaml:3: " in done.stderr


def test_in_place(cli: Cli) -> None:
    cli("run", "--no-snapshot", "--", "touch", "made-here")
    assert (cli.folder / "made-here").exists()


def test_help_is_instant() -> None:
    # Measured as what is imported: times on a loaded machine prove nothing.
    script = (
        "import sys, windlass.cli.main; print(*({'httpx', 'pydantic', 'yaml', 'fastapi', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_pipe_cancels_the_run_and_waits(cli: Cli, number: signal.Signals) -> None:
    command = [*WINDLASS, "run", "-p", "forever=true", "train.py"]
    with subprocess.Popen(
        command, cwd=cli.folder, env=cli.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"hello \n"
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, err
    assert b"cancelled" in err


class OnTerminal:
    """The command on a pseudo-terminal of its own."""

    def __init__(self, cli: Cli, *words: str) -> None:
        self.shown = ""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(cli.folder)
            os.execve(WINDLASS[0], [*WINDLASS, *words], cli.environ)

    def until(self, text: str, within_s: float = 30.0) -> str:
        """Read until `text` has come; gives what came since the last call."""
        deadline = time.monotonic() + within_s
        start = len(self.shown)
        while text not in self.shown[start:]:
            assert time.monotonic() < deadline, self.shown
            if select.select([self._fd], [], [], 0.1)[0]:
                try:
                    part = os.read(self._fd, 65536)
                except OSError:
                    part = b""
                assert part, f"ended without {text!r}: {self.shown}"
                self.shown += part.decode(errors="replace")
        return self.shown[start:]

    def press(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def exit_code(self) -> int:
        with contextlib.suppress(OSError):
            while os.read(self._fd, 65536):
                pass
        _, status = os.waitpid(self.pid, 0)
        os.close(self._fd)
        return os.waitstatus_to_exitcode(status)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


@contextlib.contextmanager
def on_terminal(cli: Cli, *words: str) -> Iterator[OnTerminal]:
    terminal = OnTerminal(cli, *words)
    try:
        yield terminal
    finally:
        terminal.end()


def test_on_a_terminal_there_is_a_live_line_and_a_record_at_the_end(cli: Cli) -> None:
    with on_terminal(cli, "run", "--name", "live", "train.py") as terminal:
        shown = terminal.until("next:")
        assert terminal.exit_code() == 0
    assert "\x1b[2K" in shown
    assert "succeeded" in shown
    assert "windlass show r-" in terminal.shown


def test_ctrl_c_asks_and_goes_on_cancels_or_leaves(cli: Cli) -> None:
    with on_terminal(cli, "run", "--name", "asking", "-p", "forever=true", "train.py") as terminal:
        terminal.until("hello")
        terminal.press("\x03")
        terminal.until("or go on (Enter)?")
        terminal.press("\n")
        terminal.until("running")
        terminal.press("\x03")
        terminal.until("or go on (Enter)?")
        terminal.press("c")
        terminal.until("cancelled")
        terminal.until("next:")
        assert terminal.exit_code() == 130
    with on_terminal(cli, "resume", "asking", "-f") as terminal:
        terminal.until("running")
        terminal.press("\x03")
        terminal.until("or go on (Enter)?")
        terminal.press("\x03")  # twice: leave it alone
        terminal.until("goes on")
        assert terminal.exit_code() == 0
    assert cli.json("show", "asking")["state"] in ("starting", "running")
    with on_terminal(cli, "watch", "asking") as terminal:
        terminal.until("q leaves")
        terminal.press("q")
        terminal.until("next:")
        assert terminal.exit_code() == 0
    cli("cancel", "asking", "--grace", "0s")


def test_the_embedded_server_comes_and_goes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    cli = Cli(home=tmp_path / "home", folder=tmp_path)
    try:
        started = cli("run", "train.py")
        assert started.stdout == "hello \n"
        assert "starting the embedded server" in started.stderr
        assert "starting" not in cli("run", "train.py").stderr
        assert "running already" in cli("up", "--daemon").stdout
        assert "has stopped" in cli("down").stderr
        assert "no server is running" in cli("down").stderr
        deadline = time.monotonic() + 30  # warm launchers end by themselves once the server has
        while servers.processes_of(cli.home):
            assert time.monotonic() < deadline, "something of the server lives on"
            time.sleep(0.05)
        assert cli("up", "--daemon", "--port", "0", "--no-auth").stdout.startswith("http://127.0.0.1:")
        assert len(cli.json("ps", "-a")) == 2
    finally:
        servers.end_processes_of(cli.home)
