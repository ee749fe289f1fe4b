"""The end of a process whose threads may still have tensors to let go of: `settle`.

A thread of PyTorch's gloo drops the tensors of a collective after it has told everybody that it is done. If the script
ends meanwhile, the thread wants an interpreter that is being taken apart; until Python 3.14 it is then ended by force,
which C++ takes for a failure, so a process that has done all its work would end with SIGABRT. Standard library only:
this module runs in the user's interpreter too.
"""

from __future__ import annotations

import atexit
import os
import sys
import time

_NAME = b"pt_gloo_runloop"
_SWITCHES = (b"voluntary_ctxt_switches", b"nonvoluntary_ctxt_switches")
_LOOK_S = 0.001
_MOST_S = 2.0


def settle_at_exit() -> None:
    """After whatever is registered from now on."""
    atexit.register(settle)


def settle(most_s: float = _MOST_S) -> None:
    """Until those threads have nothing to do, if there are any."""
    if "torch.distributed" not in sys.modules:
        return
    last_at = time.monotonic() + most_s
    before = None
    while time.monotonic() < last_at:
        now = _look()
        # Between two looks the interpreter was free: whoever waited for it has run, and shows it.
        if not now or (now == before and all(state == b"S" for state, _ in now.values())):
            return
        before = now
        time.sleep(_LOOK_S)


def _look() -> dict[str, tuple[object, ...]]:
    """Of each of the threads: its state, and how often it has given up a processor."""
    found: dict[str, tuple[object, ...]] = {}
    try:
        threads = os.listdir("/proc/self/task")
    except OSError:
        return found  # not Linux
    for thread in threads:
        try:
            with open("/proc/self/task/%s/status" % thread, "rb") as file:
                said = dict(line.split(b":\t", 1) for line in file.read().splitlines() if b":\t" in line)
        except OSError:
            continue  # it has just ended
        if said.get(b"Name") == _NAME:
            found[thread] = (said.get(b"State", b"")[:1], tuple(map(said.get, _SWITCHES)))
    return found
