"""The first failure among the processes of a run, told to all of them at once, so that none waits for a dead one.

Rank 0 listens; every rank keeps one idle connection to it. A rank that raises reports before its other connections
close, so whatever the others see of it comes later and is known to be a consequence. A rank that is killed reports
nothing, and nothing is concluded: whoever started the ranks sees that. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import threading
import traceback
from types import TracebackType

from windlass.job.session import session

_ANSWER_S = 3.0
_LONGEST_REASON = 500
_LINE = 4096
# In rank 0's process: all have been sent the first failure. If it ended before, some would never hear of it.
_passed_on = threading.Event()


def listen() -> int:
    """Start to listen on this process, rank 0; the port."""
    dual = socket.has_dualstack_ipv6()
    server = socket.create_server(
        ("", 0), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual, backlog=1024
    )
    threading.Thread(target=_relay, args=(server,), name="windlass-failures-relay", daemon=True).start()
    port: int = server.getsockname()[1]
    return port


def watch(rank: int, address: str, port: int) -> None:
    """Report this process's failure to all others, and end it when another one's is reported."""
    _Watch(rank, socket.create_connection((address, port), timeout=60)).start()


class _Watch:
    def __init__(self, rank: int, connection: socket.socket) -> None:
        self._rank = rank
        connection.settimeout(None)
        self._connection = connection
        self._first: str | None = None
        self._heard = threading.Event()
        self._failing = threading.Event()

    def start(self) -> None:
        previous = sys.excepthook

        def report(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
            self._failing.set()
            first = self._report("".join(traceback.format_exception_only(kind, error)).strip())
            previous(kind, error, where)
            if first is not None:
                print(f"windlass: {first}; the error of rank {self._rank} is a consequence", file=sys.stderr)
            self._end()

        sys.excepthook = report
        threading.Thread(target=self._wait, name="windlass-failures", daemon=True).start()

    def _report(self, reason: str) -> str | None:
        """The other rank's failure that came before this one, if any."""
        mine = f"rank {self._rank} failed: {' '.join(reason.split())[:_LONGEST_REASON]}"
        with contextlib.suppress(OSError):
            self._connection.sendall(mine.encode(errors="replace") + b"\n")
            # The answer also says that the others have been told, which they cannot be once rank 0 is gone.
            self._heard.wait(_ANSWER_S)
        return self._first if self._first != mine else None

    def _wait(self) -> None:
        with contextlib.suppress(OSError), self._connection.makefile("r", encoding="utf-8", errors="replace") as lines:
            self._first = lines.readline().strip() or None
        self._heard.set()  # also if rank 0 has left before it could answer: nobody else will
        # Whether a rank 0 that has left had finished cannot be known from here.
        if self._first is not None and not self._failing.is_set():
            print(f"windlass: {self._first}; rank {self._rank} ends too", file=sys.stderr)
            self._end()

    def _end(self) -> None:
        """Leave without the farewells of a group in which others may never answer."""
        if self._rank == 0 and self._first is not None:
            _passed_on.wait(_ANSWER_S)
        session().flush()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _relay(server: socket.socket) -> None:
    """Pass the first line that any connection sends to all of them, to the sender last."""
    first: bytes | None = None
    ranks: dict[socket.socket, bytes] = {}
    with selectors.DefaultSelector() as ready:
        ready.register(server, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is server:
                    connection, _address = server.accept()
                    ranks[connection] = b""
                    ready.register(connection, selectors.EVENT_READ)
                    if first is not None:
                        _send([connection], first)
                    continue
                sender = key.fileobj
                assert isinstance(sender, socket.socket)
                said = _read(sender)
                ranks[sender] += said
                if first is None and b"\n" in ranks[sender]:
                    first = ranks[sender].partition(b"\n")[0] + b"\n"
                    _send([other for other in ranks if other is not sender] + [sender], first)
                    _passed_on.set()
                if not said or len(ranks[sender]) > _LINE:
                    ready.unregister(sender)
                    del ranks[sender]
                    sender.close()


def _read(connection: socket.socket) -> bytes:
    with contextlib.suppress(OSError):
        return connection.recv(_LINE)
    return b""


def _send(connections: list[socket.socket], line: bytes) -> None:
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.sendall(line)
