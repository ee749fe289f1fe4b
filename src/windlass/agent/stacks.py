"""Where every process of a rank is at the moment, asked before they are ended for hanging.

Warm ranks, and those that use `windlass.job`, tell it themselves when they get a signal (`stacksignal`), into their
error output and so into their log. Of others py-spy tells if it is on their path, else the kernel what they wait for.
"""

from __future__ import annotations

import os
import time
from typing import Callable, Iterable

from . import kernel, layout
from .ranklog import timestamp
from .ranks import Rank
from .stacksignal import SIGNAL

_MOST_PROCESSES = 32  # of a rank: workers of data loaders are among them
_TOLD_WITHIN_S = 2.0
_QUIET_S = 0.1
_PY_SPY_WITHIN_S = 10.0
_ALL_WITHIN_S = 30.0


def dump(ranks: Iterable[Rank], node_dir: str, read: Callable[[], object]) -> None:
    """Into the log of each rank and into `stacks-N.txt` beside it. `read` takes in what ranks have written."""
    deadline = time.monotonic() + _ALL_WITHIN_S
    for rank in ranks:
        found = []
        for pid in [rank.pid, *kernel.descendants(rank.pid)][:_MOST_PROCESSES]:
            if time.monotonic() > deadline:
                break
            head = "stacks of process %d (%s)" % (pid, kernel.command_line(pid)[:200])
            rank.log.note(head, time.time())
            found.append("== %s at %s ==\n%s\n" % (head, timestamp(time.time()), _ask(rank, pid, read)))
        _keep(os.path.join(node_dir, layout.stacks(rank.rank)), "".join(found))


def _ask(rank: Rank, pid: int, read: Callable[[], object]) -> str:
    told = _by_itself(rank, pid, read) if kernel.catches(pid, SIGNAL) else ""
    if told:
        return told
    told = _by_py_spy(pid) or _by_kernel(pid)
    for line in told.splitlines():
        rank.log.note(line, time.time())
    return told


def _by_itself(rank: Rank, pid: int, read: Callable[[], object]) -> str:
    read()
    heard = rank.log.err.heard = bytearray()
    try:
        os.kill(pid, SIGNAL)
        deadline, quiet_at, size = time.monotonic() + _TOLD_WITHIN_S, 0.0, 0
        while (now := time.monotonic()) < deadline and not (size and now >= quiet_at):
            time.sleep(0.01)
            read()
            if len(heard) > size:
                size, quiet_at = len(heard), time.monotonic() + _QUIET_S
    except ProcessLookupError:
        pass  # it has just ended
    finally:
        rank.log.err.heard = None
    return heard.decode("utf-8", "replace")


def _by_py_spy(pid: int) -> str:
    import shutil  # here, since ranks wait for what is loaded before
    import subprocess

    program = shutil.which("py-spy", path=_search_path(pid))
    if program is None:
        return ""
    try:
        asked = [program, "dump", "--pid", str(pid)]
        done = subprocess.run(asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_PY_SPY_WITHIN_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def _search_path(pid: int) -> str:
    """The process's own: supervisors may have been started without one."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            found = [word[5:] for word in file.read().split(b"\0") if word.startswith(b"PATH=")]
    except OSError:
        found = []
    return os.pathsep.join([*map(os.fsdecode, found[:1]), os.environ.get("PATH", os.defpath)])


def _by_kernel(pid: int) -> str:
    return "\n".join(kernel.waits(pid)) or "it is gone"


def _keep(path: str, text: str) -> None:
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        pass  # a full disk; the log has it, if it could take it
