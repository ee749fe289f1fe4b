"""What torchrun says of its workers when it gives up: the summary that its ChildFailedError ends with. Pure."""

from __future__ import annotations

import re
import signal
from typing import NamedTuple

RELAYED = "ChildFailedError"  # about a worker; the worker's own error comes before it
_ROOT = "Root Cause"
_WORKER = r"rank\s+: (?P<rank>\d+) .*\n.*exitcode\s+: -(?P<signal>\d+) "


class Killed(NamedTuple):
    rank: int
    signal_number: int


def killed_worker(text: str) -> Killed | None:
    """The worker that a signal has ended: the one that torchrun takes for the cause, or another. It goes by seconds, in
    which a peer that missed it may have ended as well. Others' SIGTERM is torchrun's own."""
    _, is_there, summary = text.rpartition(RELAYED + ":")
    if not is_there:
        return None
    others, _, root = summary.rpartition(_ROOT)
    found = [Killed(int(one["rank"]), int(one["signal"])) for one in re.finditer(_WORKER, root)]
    found += [
        Killed(int(one["rank"]), int(one["signal"]))
        for one in re.finditer(_WORKER, others)
        if int(one["signal"]) != signal.SIGTERM
    ]
    return found[0] if found else None
