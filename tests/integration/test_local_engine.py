"""How attempts end on the local engine, with real processes."""

from __future__ import annotations

import json
import signal
import sys

import pytest

from tests.integration.local_runs import LocalRuns, is_running, wait_for
from windlass.core.exits import ExitReason
from windlass.engines.contract import Phase


def test_ranks_find_their_place_and_write_their_own_logs(runs: LocalRuns) -> None:
    script = runs.script("place.py", "import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'], os.getcwd())")
    attempt = runs.start("python", script, workers=2)
    seen = runs.wait(attempt)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.COMPLETED
    assert [runs.output(attempt, rank=rank).decode() for rank in (0, 1)] == [
        f"0 2 {runs.work}\n",
        f"1 2 {runs.work}\n",
    ]
    assert [end["exit_code"] for end in runs.outcome(attempt)["ranks"]] == [0, 0]


def test_a_traceback_becomes_the_message(runs: LocalRuns) -> None:
    script = runs.script("train.py", "import sys\ndef step():\n    raise ValueError('bad lr')\nstep()\n")
    first, second = runs.run("python", script).exit, runs.run("python", script).exit
    assert first is not None
    assert second is not None
    assert (first.reason, first.exit_code, first.rank) == (ExitReason.EXIT_CODE, 1, 0)
    assert first.message == "ValueError: bad lr (train.py:3)"
    assert first.fingerprint is not None
    assert first.fingerprint == second.fingerprint


def test_a_program_that_misses_gpus_nobody_asked_for_is_told_so(runs: LocalRuns) -> None:
    exit = runs.run("python", runs.script("train.py", "raise RuntimeError('No CUDA GPUs are available')")).exit
    assert exit is not None
    assert exit.message.startswith("RuntimeError: No CUDA GPUs are available (train.py:1); the run asked for no GPUs")
    assert (exit.reason, exit.trouble) == (ExitReason.EXIT_CODE, "no_gpu")


def test_the_first_rank_to_fail_gives_the_reason_and_stops_the_others(runs: LocalRuns) -> None:
    text = "import os, sys, time\nif os.environ['RANK'] == '1':\n    sys.exit(7)\ntime.sleep(600)\n"
    attempt = runs.start("python", runs.script("uneven.py", text), workers=2)
    exit = runs.wait(attempt).exit
    assert exit is not None
    assert (exit.reason, exit.exit_code, exit.rank) == (ExitReason.EXIT_CODE, 7, 1)
    assert [end["signal"] for end in runs.outcome(attempt)["ranks"]] == [signal.SIGTERM, None]


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_signal_is_named(runs: LocalRuns, number: signal.Signals) -> None:
    exit = runs.run("/bin/sh", "-c", f"kill -{int(number)} $$").exit
    assert exit is not None
    assert (exit.reason, exit.signal) == (ExitReason.SIGNAL, number)
    assert number.name in exit.message
    assert (exit.fingerprint is None) == (number is signal.SIGKILL)


def test_a_memory_limit_is_kept(runs: LocalRuns) -> None:
    script = runs.script("greedy.py", "import time\nhoard = b'x' * 300_000_000\ntime.sleep(600)\n")
    exit = runs.run("python", script, memory_bytes=100_000_000).exit
    assert exit is not None
    assert exit.reason is ExitReason.OOM
    assert "over its limit of 100 MB" in exit.message


def test_a_python_memory_error_is_out_of_memory(runs: LocalRuns) -> None:
    exit = runs.run("python", runs.script("raises.py", "raise MemoryError()\n")).exit
    assert exit is not None
    assert exit.reason is ExitReason.OOM


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (("pyhton3", "x.py"), 127, "no command 'pyhton3' on PATH; did you mean 'python3"),
        (("python", "trian.py"), 127, "no file 'trian.py' in the working folder; did you mean 'train.py'?"),
        (("/no/such/python", "train.py"), 127, "no file '/no/such/python'"),
        (("./train.py",), 126, "'./train.py' is not executable"),
        (("./broken.sh",), 127, "asks for the interpreter '/no/such/interpreter'"),
        (("./bare",), 126, "cannot execute './bare'"),
    ],
)
def test_what_cannot_start_says_why(runs: LocalRuns, argv: tuple[str, ...], code: int, words: str) -> None:
    runs.script("train.py", "print('hello')\n")
    runs.script("broken.sh", "#!/no/such/interpreter\n")
    runs.script("bare", "echo no first line\n")
    for name in ("broken.sh", "bare"):
        (runs.work / name).chmod(0o755)
    seen = runs.run(*argv)
    assert seen.exit is not None
    assert (seen.exit.reason, seen.exit.exit_code) == (ExitReason.LAUNCH_FAILED, code)
    assert words in seen.exit.message
    assert seen.started_at is None


def test_a_missing_working_folder_is_named(runs: LocalRuns) -> None:
    exit = runs.run("true", workdir="/no/such/folder").exit
    assert exit is not None
    assert exit.reason is ExitReason.LAUNCH_FAILED
    assert "/no/such/folder" in exit.message


def test_sigterm_gives_time_to_save(runs: LocalRuns) -> None:
    text = """
import signal, sys, time
def save(number, frame):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(600)
"""
    attempt = runs.start("python", runs.script("saves.py", text))
    runs.wait_for_text(attempt, "ready")
    runs.engine.stop(attempt, grace_s=20.0)
    exit = runs.wait(attempt).exit
    assert exit is not None
    assert exit.reason is ExitReason.CANCELLED
    assert runs.output(attempt) == b"ready\nsaved\n"
    assert runs.outcome(attempt)["ranks"][0]["exit_code"] == 0


def test_what_a_shell_started_gets_the_grace_period_too(runs: LocalRuns) -> None:
    text = """
import signal, sys, time
def save(number, frame):
    time.sleep(0.3)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(600)
"""
    script = runs.script("saves.py", text)
    attempt = runs.start("/bin/sh", "-c", f"echo begin; {sys.executable} {script}; echo never")
    runs.wait_for_text(attempt, "ready")
    runs.engine.stop(attempt, grace_s=20.0)
    runs.wait(attempt)
    assert runs.output(attempt) == b"begin\nready\nsaved\n"


def test_a_time_limit_has_grace_and_then_an_end(runs: LocalRuns) -> None:
    deaf = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    exit = runs.run("/bin/sh", "-c", deaf, timeout_s=0.3, grace_s=0.3).exit
    assert exit is not None
    assert exit.reason is ExitReason.TIMEOUT
    assert "0.3 s" in exit.message
    assert "killed" in exit.message


def test_launching_twice_starts_once(runs: LocalRuns) -> None:
    attempt = runs.start("/bin/sh", "-c", "echo started; sleep 0.3")
    for _ in range(5):
        runs.launch_again(attempt)
    runs.wait(attempt)
    assert runs.output(attempt) == b"started\n"


def test_nothing_starts_after_a_stop(runs: LocalRuns) -> None:
    attempt = runs.start("/bin/sh", "-c", "echo started; sleep 600")
    runs.engine.stop(attempt, grace_s=5.0)
    exit = runs.wait(attempt).exit
    assert exit is not None
    assert exit.reason is ExitReason.CANCELLED


def test_a_background_process_does_not_outlive_the_attempt(runs: LocalRuns) -> None:
    attempt = runs.start("/bin/sh", "-c", "setsid sleep 600 & echo $!; (sleep 600 &) ; exit 0")
    runs.wait(attempt)
    pid = int(runs.output(attempt))
    assert not is_running(pid)
    assert runs.processes() == []


def test_the_code_snapshot_is_laid_out_once_and_work_survives(runs: LocalRuns) -> None:
    from windlass.blobs.local import LocalBlobs
    from windlass.blobs.snapshots import store_manifest

    blobs = LocalBlobs(runs.home / "blobs")
    source = (
        b"import os\nprint(open('note').read() if os.path.exists('note') else 'new')\nopen('note', 'w').write('old')\n"
    )
    file = {"path": "pkg/main.py", "mode": 0o644, "sha256": blobs.put(source), "size": len(source)}
    digest, _ = store_manifest(blobs, [file, {"path": "link.py", "link": "pkg/main.py"}])
    first = runs.start("python", "link.py", workdir=None, code_digest=digest)
    runs.wait(first)
    second = runs.start("python", "pkg/main.py", workdir=None, code_digest=digest)
    runs.wait(second)
    assert (runs.output(first), runs.output(second)) == (b"new\n", b"old\n")


def test_a_missing_snapshot_is_a_failed_launch(runs: LocalRuns) -> None:
    exit = runs.run("true", workdir=None, code_digest="ab" * 32).exit
    assert exit is not None
    assert exit.reason is ExitReason.LAUNCH_FAILED
    assert "snapshot is missing" in exit.message


def test_usage_and_environment_are_recorded(runs: LocalRuns) -> None:
    attempt = runs.start("python", runs.script("busy.py", "import time\nwhile True: sum(range(10000))\n"))
    wait_for(lambda: runs.look(attempt).usage is not None, "a sample")
    usage = runs.look(attempt).usage
    assert usage is not None
    assert usage["rss_bytes"] > 1_000_000
    assert usage["cpu_percent"] > 1.0
    assert [row["rank"] for row in usage["ranks"]] == [0]
    wait_for(lambda: runs.look(attempt).environment is not None, "the environment")
    environment = runs.look(attempt).environment
    assert environment is not None
    assert environment["python_version"].startswith("3.")
    assert "pytest" in environment["packages"]


def test_a_record_of_surroundings_that_cannot_be_made_costs_nothing_else(runs: LocalRuns) -> None:
    (runs.home / "cache").mkdir(exist_ok=True)
    (runs.home / "cache" / "environments").write_text("no folder\n")
    attempt = runs.start("python", runs.script("go.py", "print('done')\n"))
    seen = runs.wait(attempt)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.COMPLETED, seen.exit
    assert runs.output(attempt) == b"done\n"


def test_secrets_reach_ranks_and_nothing_on_disk(runs: LocalRuns) -> None:
    script = runs.script(
        "tell.py", "import os, sys\nprint('it is', os.environ['TOKEN'])\nsys.exit(os.environ['TOKEN'])\n"
    )
    attempt = runs.start("python", script, secrets={"TOKEN": "hunter2-secret"})
    exit = runs.wait(attempt).exit
    assert exit is not None
    assert exit.message.endswith("***")
    assert runs.output(attempt) == b"it is ***\n"
    for path in runs.home.rglob("*"):
        if path.is_file():
            assert b"hunter2-secret" not in path.read_bytes(), path


def test_release_keeps_the_records_and_drops_the_plan(runs: LocalRuns) -> None:
    attempt = runs.start("/bin/sh", "-c", "echo kept", env={"PRIVATE": "settings"})
    runs.wait(attempt)
    runs.engine.release(attempt)
    assert runs.output(attempt) == b"kept\n"
    assert json.loads((runs.node_dir(attempt) / "outcome.json").read_text())["reason"] == "completed"
    assert not (runs.node_dir(attempt) / "plan.json").exists()


def test_the_engine_is_told_of_start_and_end(runs: LocalRuns) -> None:
    attempt = runs.start("/bin/sh", "-c", "sleep 0.3")
    for _ in range(2):
        assert runs.happened.wait(10.0)
        runs.happened.clear()
        if runs.look(attempt).phase is Phase.ENDED:
            return
    wait_for(lambda: runs.look(attempt).phase is Phase.ENDED, "the end that was announced")
