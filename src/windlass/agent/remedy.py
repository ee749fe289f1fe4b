"""What is done about a failure: one table, for the supervisor that could start its ranks again and for the controller
that could start another attempt. Pure. docs/recovery.md shows the table; a test compares it.
"""

from __future__ import annotations

import signal
from typing import NamedTuple

from . import patterns

# How often it is tried again.
ALWAYS = "always"  # and not counted: it says nothing about the run
UP_TO_MAX = "up to `max` times"
ONCE = "once"
IF_ASKED = "if the spec has `retry`"  # and the same failure twice ends it
NEVER = "no"

NODE = "node"  # a trouble that engines and controller name: the machine itself is gone, or has turned the run away

_CRASHES = frozenset((signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP))


class Remedy(NamedTuple):
    means: str
    again: str
    in_place: bool = False  # tried first: the same attempt, its ranks started anew by their supervisors
    elsewhere: bool = False  # its node is set aside, at once
    elsewhere_next: bool = False  # if it happens on the same node twice in a row
    aside_s: float = 30 * 60.0  # for how long it is set aside, the first time
    advice: str = ""  # for whoever reads that it was given up


# By the kind of failure: an exit reason, with `signal` and `exit_code` told apart by whose doing they are, or the
# trouble that was found, which says more.
TABLE: dict[str, Remedy] = {
    "preempted": Remedy("warned and stopped to make room", ALWAYS),
    "lost": Remedy("its supervisor is gone and left no outcome", UP_TO_MAX, elsewhere_next=True),
    # Its cluster knows so too in a moment, and one that is back is as good as new.
    NODE: Remedy("its node is gone, or has turned it away", UP_TO_MAX, elsewhere=True, aside_s=60.0),
    "killed": Remedy("a rank was killed from outside (SIGKILL, SIGTERM ...)", UP_TO_MAX, in_place=True),
    "hang": Remedy("no step for many times the usual time", UP_TO_MAX, in_place=True, elsewhere_next=True),
    patterns.DEVICE_BROKEN: Remedy("uncorrectable ECC, Xid, a GPU that is gone", UP_TO_MAX, elsewhere=True),
    patterns.DRIVER: Remedy("the node's driver does not suit the program", UP_TO_MAX, elsewhere=True),
    patterns.DISK_BROKEN: Remedy("input/output error, read-only file system", UP_TO_MAX, elsewhere=True),
    patterns.DISK_FULL: Remedy("no space left on device", UP_TO_MAX, advice="make room, then resume it"),
    patterns.NETWORK: Remedy("NCCL time-out, no route to a peer", UP_TO_MAX, in_place=True),
    patterns.DEVICE_ERROR: Remedy(
        "CUDA error: illegal memory access, launch failure, cuBLAS, cuDNN",
        ONCE,
        in_place=True,
        advice="run it with CUDA_LAUNCH_BLOCKING=1 to see where it happens",
    ),
    "oom": Remedy("out of memory", ONCE, advice="ask for more memory or make the batch smaller"),
    "own": Remedy("traceback, exit code, crash signal (SIGSEGV ...)", IF_ASKED, in_place=True),
    patterns.NAN: Remedy(
        "stopped for a loss or gradient that is no number",
        NEVER,
        advice="going on from the same state would end the same",
    ),
    patterns.EXPLODED: Remedy(
        "stopped for a loss or gradient that is many times the usual",
        NEVER,
        advice="going on from the same state would end the same",
    ),
    patterns.NO_GPU: Remedy("the program wants a GPU and finds none: it asked for none, or PyTorch has no CUDA", NEVER),
    "timeout": Remedy("the run's time limit", NEVER),
    "cancelled": Remedy("somebody asked", NEVER),
    "launch_failed": Remedy("no rank could be started", NEVER),
}


def kind_of(reason: str, signal_number: int | None, trouble: str | None) -> str:
    """The row of the table."""
    if reason in ("signal", "exit_code", "lost", "launch_failed") and trouble in TABLE:
        return str(trouble)
    if reason == "signal":
        return "own" if signal_number in _CRASHES else "killed"
    return "own" if reason == "exit_code" else reason


def decide_remedy(reason: str, signal_number: int | None, trouble: str | None) -> Remedy:
    """Of a reason that this version does not know, no more is concluded than that the attempt is over."""
    return TABLE.get(kind_of(reason, signal_number, trouble), TABLE["lost"])
