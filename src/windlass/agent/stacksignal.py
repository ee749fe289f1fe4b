"""The signal by which a process is asked where it is: Python's faulthandler then writes the stacks of its threads to
its error output, whatever locks are held. Standard library only: this module runs in the user's interpreter too.
"""

from __future__ import annotations

import signal

# Nobody's: SIGUSR1 and its like are used by frameworks and clusters. Nodes have Linux, but scripts are tried elsewhere.
SIGNAL = int(getattr(signal, "SIGRTMIN", 34)) + 5


def listen() -> None:
    """Costs microseconds, opens nothing."""
    import faulthandler

    faulthandler.register(SIGNAL, file=2, all_threads=True)
