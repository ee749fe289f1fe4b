"""The process between Ray's actor and the relay: ends the relay when Ray lets go of the actor, but not when Ray's head
is away. Raylets end when their head does, or when it comes back without its memory, and take their workers along; the
ranks are well all the same, and go on.

Its source is sent to the node and run there: standard library only.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time

_LOOK_EVERY_S = 0.25
_AFTERMATH_S = 120.0  # so long after the head's return the end of a raylet is put down to its absence


class Head:
    """Whether Ray's head has been away, told by a connection that stands still for as long as it is there."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host.strip("[]"), int(port))
        self._connection: socket.socket | None = None
        self._missed_at: float | None = None

    def look(self, timeout_s: float) -> None:
        """Wait for as long, or until the connection breaks."""
        if self._connection is None:
            self._connect()
        if self._connection is None:
            time.sleep(timeout_s)
        elif select.select([self._connection], [], [], timeout_s)[0] and not self._says_something():
            self._connection.close()
            self._connection = None
            self._connect()  # it may only have been tired of a silent client

    def was_away(self) -> bool:
        return self._missed_at is not None and time.monotonic() - self._missed_at < _AFTERMATH_S

    def _connect(self) -> None:
        try:
            self._connection = socket.create_connection(self._address, timeout=1.0)
        except OSError:
            self._missed_at = time.monotonic()

    def _says_something(self) -> bool:
        assert self._connection is not None
        try:
            return bool(self._connection.recv(4096))
        except OSError:
            return False


def keep(head: Head, masters: list[int], command: list[str]) -> int:
    """Run `command`, which ends with this process, to its end, or to that of one of the masters."""
    relay = subprocess.Popen([*command, f"--die-with-parent-pid={os.getpid()}"], stdin=subprocess.DEVNULL)
    bound = True
    while relay.poll() is None:
        if bound and not all(_lives(pid) for pid in masters):
            head.look(0.0)
            if not head.was_away():
                relay.kill()
            bound = False
        head.look(_LOOK_EVERY_S)
    return relay.returncode


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def main(head: str, masters: str, program: str) -> None:
    """Leaves its starter first: a worker of Ray kills its children when it ends."""
    if os.fork() == 0:
        os.setsid()
        keep(Head(head), [int(pid) for pid in masters.split(",")], [sys.executable, "-c", program])
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
