"""Scripts in a warm interpreter: quick, and none the wiser."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.local_runs import LocalRuns, wait_for
from windlass.core.exits import ExitReason
from windlass.engines.local import stop_launchers

# What a script can find out about the process it runs in.
FACTS = """
import os, sys, signal, threading, pickle, multiprocessing, atexit, gc, tempfile, inspect, subprocess, quickmodule

def double(x):
    return 2 * x

class Point:
    pass

def tell(name, value):
    print(name, "=", repr(value))

if __name__ == "__main__":
    tell("globals", sorted(name for name in globals() if name.startswith("__")))
    tell("file", (__file__, __name__, __package__, globals().get("__cached__")))
    tell("spec", __spec__ and __spec__.name)
    tell("loader", type(__loader__).__name__)
    tell("builtins", __builtins__.__name__)
    tell("is main", sys.modules["__main__"].__dict__ is globals())
    tell("argv", (sys.argv, sys.orig_argv, sys.executable, sys.prefix, sys.flags, sys.warnoptions))
    tell("path", sys.path)
    tell("cwd", (os.getcwd(), os.environ["PWD_WANTED"]))
    tell("environ", sorted(os.environ))
    for s in (sys.stdin, sys.stdout, sys.stderr):
        tell("stream", (s.name, s.mode, s.encoding, s.errors, s.isatty(), s.fileno()))
    tell("original streams", (sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__))
    tell("stdin", sys.stdin.read())
    tell("signals", {int(n): str(signal.getsignal(n)) for n in sorted(signal.valid_signals())})
    tell("mask", signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    tell("agent", [name for name in sys.modules if "windlass" in name])
    tell("threads", [t.name for t in threading.enumerate()])
    tell("files", sorted(map(int, os.listdir("/proc/self/fd")))[:4])
    tell("group", os.getpgrp() == os.getpid())
    tell("hook", sys.excepthook is sys.__excepthook__)
    tell("gc", (gc.isenabled(), gc.get_threshold()))
    tell("temporary folder", tempfile.gettempdir())
    seen = subprocess.run(["env", "-0"], capture_output=True, text=True).stdout.split("\\0")[:-1]
    tell("a child's environment", sorted(seen) == sorted(f"{k}={v}" for k, v in os.environ.items()))
    tell("pickle", (pickle.loads(pickle.dumps(double)) is double, type(pickle.loads(pickle.dumps(Point()))) is Point))
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            tell(method, pool.map(double, [1, 2, 3]))
    atexit.register(print, "at exit")
    thread = threading.Thread(target=lambda: print("thread ran to its end"))
    thread.start()
    how = sys.argv[1] if len(sys.argv) > 1 else ""
    if how == "raise":
        try:
            {}["missing"]
        except KeyError:
            raise ValueError("bad lr")
    if how == "interrupt":
        raise KeyboardInterrupt
    if how:
        sys.exit(int(how) if how.isdigit() else how)
"""
# Of one attempt only, or what makes a process known.
VARYING = re.compile(r"MASTER_PORT|0x[0-9a-f]+|attempts/\\d+")


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[LocalRuns]:
    runs = LocalRuns(tmp_path, preimport=("quickmodule", "json", "multiprocessing.pool", "tempfile", "random"))
    runs.make_warm("quickmodule")
    yield runs
    runs.clean_up()
    assert runs.processes() == []


def both(runs: LocalRuns, *argv: str) -> list[tuple[object, list[str], list[str]]]:
    """Exit and output of the same command, cold and warm."""
    found: list[tuple[object, list[str], list[str]]] = []
    for warm in (False, True):
        attempt = runs.start(
            *argv, env={**runs.warm_env, "PWD_WANTED": str(runs.work), "TMPDIR": "/var/tmp"}, warm=warm
        )
        exit = runs.wait(attempt).exit
        out, err = (VARYING.sub("*", runs.output(attempt, stream=stream).decode()).splitlines() for stream in "oe")
        found.append((exit, out, err))
    return found


@pytest.mark.parametrize("how", ["", "raise", "interrupt", "3", "message"])
@pytest.mark.parametrize("command", [("python", "facts.py"), ("python", "-u", "-m", "facts")])
def test_warm_is_like_cold(runs: LocalRuns, command: tuple[str, ...], how: str) -> None:
    runs.script("facts.py", FACTS)
    cold, warm = both(runs, *command, *([how] if how else []))
    assert warm[1] == cold[1]
    assert warm[2] == cold[2]
    assert warm[0] == cold[0]
    assert len(warm[1]) >= 30


@pytest.mark.parametrize("source", ["import quickmodule\nx = = 1\n", "import quickmodule\ndef f(): return g\nf()\n"])
def test_errors_look_the_same(runs: LocalRuns, source: str) -> None:
    cold, warm = both(runs, "python", runs.script("wrong.py", source))
    assert warm == cold
    assert warm[2]


ASKS = "import os, quickmodule\nprint(quickmodule.loaded_in != os.getpid())\n"


def is_warm(runs: LocalRuns, text: str = ASKS, *, flags: tuple[str, ...] = (), **options: Any) -> bool:
    """Whether the module was loaded by another process than the one that runs the script."""
    attempt = runs.start("python", *flags, runs.script("asks.py", text), env=runs.warm_env, **options)
    runs.wait(attempt)
    return {b"True": True, b"False": False}[runs.output(attempt).split()[-1]]


def test_the_script_really_runs_in_place(runs: LocalRuns) -> None:
    assert is_warm(runs)
    assert not is_warm(runs, warm=False)


@pytest.mark.parametrize("change", ["shadows a module", "sets a variable read at import", "passes an option"])
def test_scripts_that_would_notice_are_executed(runs: LocalRuns, change: str) -> None:
    if change == "shadows a module":
        runs.script("random.py", "")
        assert not is_warm(runs)
    elif change == "sets a variable read at import":
        assert not is_warm(runs, "import os\nos.environ['OMP_NUM_THREADS'] = '4'\n" + ASKS)
    else:
        assert not is_warm(runs, flags=("-O",))


def test_new_packages_make_a_launcher_stale(runs: LocalRuns) -> None:
    before = runs.warm_launcher()
    assert before is not None
    (Path(runs.warm_env["PYTHONPATH"]) / "another.py").write_text("")
    assert not is_warm(runs)
    wait_for(lambda: before not in runs.launchers(), "the old launcher to leave")
    is_warm(runs)
    wait_for(runs.warm_launcher, "a new launcher")


def test_random_numbers_differ_between_ranks_and_runs(runs: LocalRuns) -> None:
    script = runs.script("dice.py", "import random, quickmodule\nprint(random.random())\n")
    attempts = [
        runs.start("python", script, workers=2, env={**runs.warm_env, "OMP_NUM_THREADS": "2"}) for _ in range(2)
    ]
    drawn = set()
    for attempt in attempts:
        runs.wait(attempt)
        drawn |= {runs.output(attempt, rank=rank) for rank in (0, 1)}
    assert len(drawn) == 4


def test_a_module_that_cannot_be_loaded_is_the_scripts_own_affair(tmp_path: Path) -> None:
    runs = LocalRuns(tmp_path, preimport=("brokenmodule",))
    try:
        (tmp_path / "brokenmodule.py").write_text("raise RuntimeError('broken')\n")
        env = {"PYTHONPATH": str(tmp_path)}
        attempt = runs.start("python", runs.script("uses.py", "import brokenmodule\n"), env=env)
        exit = runs.wait(attempt).exit
        assert exit is not None
        assert exit.message == "RuntimeError: broken (brokenmodule.py:1)"
    finally:
        runs.clean_up()


def test_a_wrapper_script_as_python_is_executed(runs: LocalRuns) -> None:
    wrapper = runs.work / "bin" / "python"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexport WRAPPED=yes\nexec {os.path.realpath("/proc/self/exe")} "$@"\n')
    wrapper.chmod(0o755)
    script = runs.script("asks.py", "import os, quickmodule\nprint(os.environ['WRAPPED'])\n")
    attempt = runs.start(str(wrapper), script, env=runs.warm_env)
    exit = runs.wait(attempt).exit
    assert exit is not None
    assert exit.reason is ExitReason.COMPLETED
    assert runs.output(attempt) == b"yes\n"


def test_launchers_can_be_stopped_while_runs_go_on(runs: LocalRuns) -> None:
    attempt = runs.start("/bin/sh", "-c", "echo started; sleep 0.5; echo finished")
    runs.wait_for_text(attempt, "started")
    assert runs.launchers()
    stop_launchers(runs.home)
    assert runs.launchers() == []
    runs.wait(attempt)
    assert runs.output(attempt) == b"started\nfinished\n"


def test_a_deep_home_works(tmp_path: Path) -> None:
    runs = LocalRuns(tmp_path / ("deep" * 20) / ("deeper" * 10))
    try:
        exit = runs.run("true").exit
        assert exit is not None
        assert exit.reason is ExitReason.COMPLETED
    finally:
        runs.clean_up()
