"""The first failure among the processes of a run, told to all of them at once, so that none waits for a dead one.

Rank 0 listens; every rank keeps one idle connection to it. A rank that raises reports before its other connections
close, so whatever the others see of it comes later and is known to be a consequence. A rank that is killed reports
nothing, and nothing is concluded: whoever started the ranks sees that. Standard library only.

A rank that ends well says after how many steps it does, so that others which are in a later one know whom they miss;
one that turns from steps to evaluations, or back, says so and waits for the others. Lines of the connection are a
failure in words, `ended RANK STEPS EVALUATIONS`, `turned RANK CALL KIND`, which comes back as `agreed CALL` when all
have said it, or `heard RANK`, which only comes back.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from types import TracebackType

from windlass.job.calls import Call, Calls, Turn
from windlass.job.session import session

_ANSWER_S = 3.0
_LONGEST_REASON = 500
_LINE = 4096
_FAREWELL_S = 1.0
_OWN_WORDS_S = 1.0
_FAILED = " failed: "
# What all ranks refuse at the same place, each by itself: no rank's is a consequence of another's.
_OF_ALL = frozenset(("InvalidPlan", "RanksDisagree", "SickStep"))
_ENDED, _TURNED, _AGREED, _HEARD = "ended", "turned", "agreed", "heard"
# Then it goes on all the same: a rank that was killed never turns, and the backend says so.
_TURN_S = 60.0
# In rank 0's process: all have been sent the first failure. If it ended before, some would never hear of it.
_passed_on = threading.Event()


class RanksDisagree(RuntimeError):
    """Processes of one run came with different models, plans, batches or numbers of them. Raised by all of them."""


def listen(world_size: int) -> int:
    """Start to listen on this process, rank 0; the port."""
    dual = socket.has_dualstack_ipv6()
    server = socket.create_server(
        ("", 0), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual, backlog=1024
    )
    threading.Thread(target=_relay, args=(server, world_size), name="windlass-failures-relay", daemon=True).start()
    port: int = server.getsockname()[1]
    return port


def watch(rank: int, address: str, port: int) -> None:
    """Report this process's failure to all others, and end it when another one's is reported."""
    global _watch
    _watch = _Watch(rank, socket.create_connection((address, port), timeout=60))
    _watch.start()


def is_consequence(reason: str, told: str) -> bool:
    """Whether a failure follows from another rank's that was told before, as far as their words say."""
    if reason == told:
        return False
    return _kind(reason) != _kind(told) or _kind(told) not in _OF_ALL


def begin_step() -> None:
    """This process begins a step that all ranks have part in. RanksDisagree if another one has ended before it."""
    if _watch is not None:
        _watch.begin(Call.STEP)


def begin_evaluation() -> None:
    """The same of an evaluation: what others have part in now is none of training."""
    if _watch is not None:
        _watch.begin(Call.EVALUATION)


class _Watch:
    def __init__(self, rank: int, connection: socket.socket) -> None:
        self._rank = rank
        connection.settimeout(None)
        self._connection = connection
        self._first: str | None = None
        self._heard = threading.Event()
        self._ends = threading.Event()  # by itself or not, well or not: nobody else is to end it any more
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self._calls = Calls(rank)

    def begin(self, kind: Call) -> None:
        if turn := self._calls.begin(kind):
            self._tell(turn)
            self._calls.wait(_TURN_S)
        if missed := self._calls.missed():
            raise RanksDisagree(missed)

    def _tell(self, turn: Turn) -> None:
        with contextlib.suppress(OSError):
            self._connection.sendall(f"{_TURNED} {self._rank} {turn.call} {turn.kind}\n".encode())

    def start(self) -> None:
        previous = sys.excepthook

        def report(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
            if not self._begins_to_end():
                time.sleep(2 * _ANSWER_S)  # another thread has said why, and is about to end the process
            # An error of the connection, most likely. By the answer all is known that was told before.
            if self._calls.begun and isinstance(error, RuntimeError) and not isinstance(error, RanksDisagree):
                self._ask(f"{_HEARD} {self._rank}", _ANSWER_S)
                if missed := self._calls.missed():
                    cause, error = error, RanksDisagree(missed)
                    kind, error.__cause__ = RanksDisagree, cause
            reason = _in_one_line("".join(traceback.format_exception_only(kind, error)))
            first = self._report(reason)
            previous(kind, error, where)
            if first is not None and is_consequence(reason, first.partition(_FAILED)[2]):
                print(f"windlass: {first}; the error of rank {self._rank} is a consequence", file=sys.stderr)
            self._end()

        sys.excepthook = report
        threading.Thread(target=self._wait, name="windlass-failures", daemon=True).start()
        atexit.register(self._leave)

    def _leave(self) -> None:
        if self._calls.begun and self._begins_to_end():
            self._ask(f"{_ENDED} {self._rank} {self._calls.counts}", _FAREWELL_S)

    def _begins_to_end(self) -> bool:
        """Whether it has not begun before, in this or another thread: one of them says why."""
        with self._lock:
            begins = not self._ends.is_set()
            self._ends.set()
        return begins

    def _ask(self, line: str, patience_s: float) -> None:
        """Tell something that comes back when all others have been told."""
        self._answered.clear()
        with contextlib.suppress(OSError):
            self._connection.sendall(f"{line}\n".encode())
            if not self._heard.is_set():
                self._answered.wait(patience_s)

    def _report(self, reason: str) -> str | None:
        """The other rank's failure that came before this one, if any."""
        mine = f"rank {self._rank}{_FAILED}{_in_one_line(reason)}"
        with contextlib.suppress(OSError):
            self._connection.sendall(mine.encode(errors="replace") + b"\n")
            # The answer also says that the others have been told, which they cannot be once rank 0 is gone.
            self._heard.wait(_ANSWER_S)
        return self._first if self._first != mine else None

    def _wait(self) -> None:
        with contextlib.suppress(OSError), self._connection.makefile("r", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if not self._noted(line.split()):
                    self._first = line.strip() or None
                    break
        self._heard.set()
        self._answered.set()  # also if rank 0 has left before it could answer: nobody else will
        # Whether a rank 0 that has left had finished cannot be known from here.
        if self._first is None:
            self._calls.give_up()
            return
        if _kind(self._first.partition(_FAILED)[2]) in _OF_ALL:
            self._ends.wait(_OWN_WORDS_S)
        if self._begins_to_end():
            print(f"windlass: {self._first}; rank {self._rank} ends too", file=sys.stderr)
            self._end()

    def _noted(self, words: list[str]) -> bool:
        """Whether it was not a failure."""
        if words[:1] not in ([_ENDED], [_TURNED], [_AGREED], [_HEARD]):
            return False
        number = int(words[1])
        if words[0] == _AGREED:
            self._calls.agree(number)
        elif words[0] == _TURNED:
            if mine := self._calls.hear(number, int(words[2]), Call(words[3])):
                self._tell(mine)
        elif number == self._rank:
            self._answered.set()
        elif words[0] == _ENDED:
            self._calls.end(number, [int(count) for count in words[2:]])
        if self._calls.missed() is not None:
            threading.Thread(target=self._end_alone, name="windlass-failures-patience", daemon=True).start()
        return True

    def _end_alone(self) -> None:
        """In a step that can never end. Most backends notice so themselves, and then there is a traceback."""
        missed = self._calls.missed()
        if not self._ends.wait(_ANSWER_S) and self._first is None and self._begins_to_end():
            first = self._report(f"{RanksDisagree.__name__}: {missed}")
            print(f"windlass: {first or missed}; rank {self._rank} ends too", file=sys.stderr)
            self._end()

    def _end(self) -> None:
        """Leave without the farewells of a group in which others may never answer."""
        if self._rank == 0 and self._first is not None:
            _passed_on.wait(_ANSWER_S)
        session().flush()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _relay(server: socket.socket, world_size: int) -> None:
    """Pass the first failure that any connection tells to all of them, to the sender last, and who has ended or turned
    to something else."""
    first: bytes | None = None
    ended: list[bytes] = []
    turns: dict[bytes, set[bytes]] = {}  # by call and kind, who
    ranks: dict[socket.socket, bytes] = {}
    with selectors.DefaultSelector() as ready:
        ready.register(server, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is server:
                    connection, _address = server.accept()
                    ranks[connection] = b""
                    ready.register(connection, selectors.EVENT_READ)
                    for line in [*ended, *([first] if first is not None else [])]:
                        _send([connection], line)
                    continue
                sender = key.fileobj
                assert isinstance(sender, socket.socket)
                said = _read(sender)
                *lines, ranks[sender] = (ranks[sender] + said).split(b"\n")
                others = [other for other in ranks if other is not sender]
                for line in (line + b"\n" for line in lines):
                    kind = line.split(b" ", 1)[0].decode(errors="replace")
                    if kind == _HEARD:
                        _send([sender], line)
                    elif kind == _ENDED:
                        ended.append(line)
                        _send([*others, sender], line)
                    elif kind == _TURNED:
                        _pass_turn(line, turns, sender, ranks, world_size)
                    elif first is None:
                        first = line
                        _send([*others, sender], first)
                        _passed_on.set()
                if not said or len(ranks[sender]) > _LINE:
                    ready.unregister(sender)
                    del ranks[sender]
                    sender.close()


def _pass_turn(
    line: bytes, turns: dict[bytes, set[bytes]], sender: socket.socket, ranks: Iterable[socket.socket], world_size: int
) -> None:
    """The first of its kind to all others, since most say the same; and that all have said it, to all."""
    _, rank, turn = line.split(b" ", 2)
    if turn not in turns:
        _send((other for other in ranks if other is not sender), line)
    who = turns.setdefault(turn, set())
    who.add(rank)
    if len(who) == world_size:
        del turns[turn]
        _send(ranks, f"{_AGREED} {turn.split()[0].decode()}\n".encode())


def _in_one_line(reason: str) -> str:
    return " ".join(reason.split())[:_LONGEST_REASON]


def _kind(reason: str) -> str:
    """The name of the error, without its module's."""
    return reason.partition(":")[0].rpartition(".")[2]


_watch: _Watch | None = None  # one a process, as its connection is


def _read(connection: socket.socket) -> bytes:
    with contextlib.suppress(OSError):
        return connection.recv(_LINE)
    return b""


def _send(connections: Iterable[socket.socket], line: bytes) -> None:
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.sendall(line)
