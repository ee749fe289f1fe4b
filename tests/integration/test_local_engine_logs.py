"""Output of every kind, on its way from a rank to its log."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.local_runs import LocalRuns, wait_for
from windlass.agent import kernel, layout
from windlass.core.errors import StorageFull
from windlass.core.exits import ExitReason


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[LocalRuns]:
    runs = LocalRuns(tmp_path)
    yield runs
    runs.clean_up()


def test_bytes_are_kept_as_they_are(runs: LocalRuns) -> None:
    text = "import sys\nsys.stdout.buffer.write(bytes(range(256)) + b'\\n' + b'\\xff' * 1000 + b'\\r\\nno newline')\n"
    attempt = runs.start("python", runs.script("bytes.py", text))
    runs.wait(attempt)
    assert runs.output(attempt) == bytes(range(256)) + b"\n" + b"\xff" * 1000 + b"\r\nno newline"


def test_a_line_of_ten_megabytes(runs: LocalRuns) -> None:
    text = "import sys\nsys.stdout.write('x' * 10_000_000 + '\\n')\nsys.stderr.write('e\\n')\n"
    attempt = runs.start("python", runs.script("long.py", text))
    runs.wait(attempt)
    assert runs.output(attempt) == b"x" * 10_000_000 + b"\n"
    assert runs.output(attempt, stream="e") == b"e\n"
    log = (runs.node_dir(attempt) / layout.rank_log(0)).read_bytes()
    assert max(map(len, log.split(b"\n"))) < 65 * 1024


def test_an_unfinished_line_shows_while_the_rank_goes_on(runs: LocalRuns) -> None:
    attempt = runs.start("/bin/sh", "-c", "printf '50%%'; exec sleep 600")
    wait_for(lambda: " o+ 50%\n" in runs.log(attempt), "the unfinished line")


def test_a_hundred_thousand_lines_a_second(runs: LocalRuns) -> None:
    """As fast as the rank can write; the supervisor must need no more than half a core for 100,000 lines a second."""
    count = 500_000
    text = f"""
import sys, time
for start in range(0, {count}, 1000):
    sys.stdout.write("".join("step %d loss 0.123456\\n" % n for n in range(start, start + 1000)))
time.sleep(1)
"""
    attempt = runs.start("python", runs.script("talk.py", text))
    last = f"step {count - 1} ".encode()
    path = runs.node_dir(attempt) / layout.rank_log(0)
    wait_for(lambda: path.exists() and last in _end_of(path), "the last line")
    supervisor = kernel.stat(runs.status(attempt)["pid"])
    runs.wait(attempt)
    assert runs.output(attempt).count(b"\n") == count
    assert supervisor is not None
    assert supervisor.cpu_s < 0.5 * count / 100_000


def test_a_flood_does_not_delay_a_stop(runs: LocalRuns) -> None:
    attempt = runs.start("/bin/sh", "-c", "exec yes")
    wait_for(lambda: len(runs.log(attempt)) > 1_000_000, "the flood")
    start = time.monotonic()
    runs.engine.stop(attempt, grace_s=10.0)
    exit = runs.wait(attempt).exit
    assert exit is not None
    assert exit.reason is ExitReason.CANCELLED
    assert time.monotonic() - start < 8.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture
def cramped(small_disk: Path) -> Iterator[LocalRuns]:
    runs = LocalRuns(small_disk)
    yield runs
    runs.clean_up()


def test_a_full_disk_costs_output_and_nothing_else(cramped: LocalRuns, tmp_path: Path) -> None:
    text = """
import os, sys, time
for n in range(100_000):
    print("a line that needs room", n)
open(sys.argv[1], "w").close()
while os.path.exists(sys.argv[1]):
    time.sleep(0.01)
print("room again")
"""
    post = tmp_path / "full"
    attempt = cramped.start("python", cramped.script("writes.py", text), str(post))
    wait_for(post.exists, "all lines to be written")
    wait_for(lambda: shutil.disk_usage(cramped.home).free < 4096, "the disk to be full")
    os.truncate(cramped.node_dir(attempt) / layout.rank_log(0), 1_000_000)
    post.unlink()
    exit = cramped.wait(attempt).exit
    assert exit is not None
    assert exit.reason is ExitReason.COMPLETED
    assert "lost to a full disk" in exit.message
    assert cramped.outcome(attempt)["dropped_log_bytes"] > 1_000_000
    assert " of output were dropped here: No space left on device\n" in cramped.log(attempt)
    assert cramped.log(attempt).endswith(" o room again\n")


def test_an_outcome_is_written_on_a_disk_without_room(cramped: LocalRuns) -> None:
    attempt = cramped.start("/bin/sh", "-c", "yes | head -c 8000000; exit 5")
    exit = cramped.wait(attempt).exit
    assert shutil.disk_usage(cramped.home).free < 65536
    assert exit is not None
    assert exit.exit_code == 5


def test_no_room_to_start_is_said_at_once(cramped: LocalRuns) -> None:
    (cramped.work / "filler").write_bytes(b"x" * (shutil.disk_usage(cramped.home).free // 4096 * 4096))
    with pytest.raises(StorageFull, match="no room on the disk"):
        cramped.start("true")


def _end_of(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 200))
        return file.read()
