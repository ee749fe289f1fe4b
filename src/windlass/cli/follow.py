"""Following a run on the terminal to its end: logs with a live status line, what Ctrl-C does, and the exit code.

A thread reads the stream; the main thread alone writes to the terminal and deals with signals, between two writes, so
that no line is torn or lost.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

from windlass.cli.loglines import LogFormatter
from windlass.cli.pane import Pane
from windlass.cli.status import Status
from windlass.cli.terminal import next_steps, notice, paint_for, width_of
from windlass.core.errors import Conflict, ServerUnreachable, WindlassError

if TYPE_CHECKING:
    from windlass.client import Run, Update

_REFRESH_S = 0.1
_TOLD = ("retrying", "recovered", "set_aside", "cancel_requested", "resumed")  # kinds of events
_MOST_AT_ONCE = 2_000
_WHY_AFTER_S, _WHY_EVERY_S = 1.0, 5.0
_PROGRESS_EVERY_S = 10.0  # where there is no live line
_LEAVE = "detach"


def follow_to_end(run: Run, *, rank: int | None = None, tail: int | None = None) -> int:
    """Show the run until it ends or is left; the exit code is the run's, or 0 if it was left."""
    follower = Follower(run, rank=rank, tail=tail)
    with _signals(follower):
        try:
            ended = follower.loop()
        except ServerUnreachable as error:
            follower.pane.clear()
            raise ServerUnreachable(
                error.message, hint=f"the run goes on by itself; `windlass logs -f {run.id}` follows it again"
            ) from error
    if not ended:
        notice(f"detached; {run.id} goes on")
        next_steps(f"windlass logs -f {run.id}", f"windlass watch {run.id}", f"windlass cancel {run.id}")
        return 0
    from windlass.cli.show import show_end

    show_end(run)
    return run.exit_code if run.exit_code is not None else 1


class Follower:
    def __init__(self, run: Run, *, rank: int | None, tail: int | None) -> None:
        self.run = run
        self.interactive = sys.stdin.isatty() and sys.stderr.isatty()
        self.pane = Pane(live=sys.stdout.isatty())
        self.signals = 0
        self._paint = paint_for(sys.stdout)
        self._format = LogFormatter(
            paint=self._paint, ranks=run.world_size > 1 and rank is None, as_written=not self.pane.live
        )
        self._status = Status.of(run.view)
        # Bounded: if the terminal is slow or waits for an answer, the stream waits too.
        self._updates: queue.Queue[Update | bool | Exception] = queue.Queue(maxsize=10_000)
        self._reader = threading.Thread(target=self._read, args=(rank, tail), name="windlass-stream", daemon=True)
        self._asked_why_at = time.monotonic() - _WHY_EVERY_S + _WHY_AFTER_S
        self._told_progress_at = time.monotonic()

    def loop(self) -> bool:
        """True once the run is over, False if the user has left."""
        self._reader.start()
        while True:
            if self.signals and self._interrupted() == _LEAVE:
                self._finish()
                return False
            ended = self._step()
            if ended:
                self._finish()
                return True
            self._ask_why()

    def _read(self, rank: int | None, tail: int | None) -> None:
        try:
            for update in self.run.follow(rank=rank, tail=tail, on_gap=self._updates.put):
                self._updates.put(update)
        except Exception as error:  # handed over: the main thread raises it
            self._updates.put(error)

    def _step(self) -> bool:
        lines: list[tuple[str, str]] = []
        ended = False
        for update in self._taken():
            if isinstance(update, Exception):
                self.pane.show(lines, [])
                raise update
            if isinstance(update, bool):
                lines += self._gap(update)
            elif update.kind == "log":
                if (shown := self._format.feed(update.value)) is not None:
                    lines.append((shown.stream, shown.text))
            else:
                self._status.see(update)
                if update.kind == "event":
                    lines += self._event_lines(update.value.kind, update.value.message)
                ended = ended or update.kind == "end"
        lines += self._progress_lines()
        self.pane.show(lines, self._rows())
        return ended

    def _taken(self) -> Iterator[Update | bool | Exception]:
        with contextlib.suppress(queue.Empty):
            yield self._updates.get(timeout=_REFRESH_S)
            for _ in range(_MOST_AT_ONCE):
                yield self._updates.get_nowait()

    def _gap(self, lost: bool) -> list[tuple[str, str]]:
        self._status.connected = not lost
        return self._remark("connection lost, reconnecting" if lost else "connected again")

    def _event_lines(self, kind: str, message: str) -> list[tuple[str, str]]:
        if kind == "alert":
            return [("stderr", self._paint(f"windlass: {message}", "yellow"))]
        return self._remark(message) if kind in _TOLD else []

    def _progress_lines(self) -> list[tuple[str, str]]:
        if self.pane.live or not self._status.progress or time.monotonic() - self._told_progress_at < _PROGRESS_EVERY_S:
            return []
        self._told_progress_at = time.monotonic()
        return self._remark(self._status.sentence())

    def _remark(self, text: str) -> list[tuple[str, str]]:
        """Ours, so it is dim on a terminal and on stderr in a pipe."""
        return [("stderr", self._paint(f"windlass: {text}", "dim"))]

    def _rows(self) -> list[str]:
        if not self.pane.live:
            return []
        row = self._status.line(self._paint, width_of(sys.stdout) - 1, time.time())
        return [self._format.unfinished, row] if self._format.unfinished else [row]

    def _ask_why(self) -> None:
        waiting = self._status.state in ("queued", "recovering")
        if not (self.pane.live and waiting and time.monotonic() - self._asked_why_at > _WHY_EVERY_S):
            return
        self._asked_why_at = time.monotonic()
        with contextlib.suppress(WindlassError):  # the stream notices and tells if the server is away
            self._status.waiting_for = self.run.why().summary

    def _finish(self) -> None:
        self.pane.show([(shown.stream, shown.text) for shown in self._format.drain()], [])
        self.pane.clear()

    def _interrupted(self) -> str:
        """What the signals that came mean: leave, or go on (after asking for the end, if that was the answer)."""
        if self.interactive and not self._status.cancelling:
            self.pane.clear()
            answer = _ask(f"{self.run.id}: detach (d), cancel (c), or go on (Enter)? ")
            self.signals = 0
        else:
            # A second signal while it is being cancelled means: do not wait for it.
            answer = "d" if self._status.cancelling else "c"
            self.signals = 0
        if answer == "d":
            return _LEAVE
        if answer == "c":
            with contextlib.suppress(Conflict):  # it has ended meanwhile
                self.run.cancel()
            self._status.cancelling = True
        return "go on"


def _ask(question: str) -> str:
    """One key from the terminal. Ctrl-C again means detach."""
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        # Before the question is seen, and without dropping what is typed: an answer may come at once.
        tty.setcbreak(fd, termios.TCSANOW)
        sys.stderr.write(question)
        sys.stderr.flush()
        while True:
            select.select([fd], [], [])
            key = os.read(fd, 1).decode(errors="replace").lower()
            if key in ("d", "c", "\n", "\r", "", "g", "\x04"):
                answer = {"": "d", "\x04": "d"}.get(key, key)
                break
    except KeyboardInterrupt:
        answer = "d"
    finally:
        signal.signal(signal.SIGINT, handler)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
    sys.stderr.write({"d": "detach", "c": "cancel"}.get(answer, "go on") + "\n")
    return answer


@contextlib.contextmanager
def _signals(follower: Follower) -> Iterator[None]:
    """Count signals instead of being interrupted by them."""

    def count(_number: int, _frame: FrameType | None) -> None:
        follower.signals += 1

    caught = [signal.SIGINT] if follower.interactive else [signal.SIGINT, signal.SIGTERM]
    before = {number: signal.signal(number, count) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
