"""The processes below a relay: one supervisor and whatever it leaves behind. Also fit to be a container's process 1.

Signals are acted on in their handlers: Python runs those between any two steps, also while a request waits for its
answer, and the ranks' grace period is running then.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from typing import Any, Callable, Sequence

from . import kernel
from .ranks import fork, reset_signals

_LOOK_UP_S = 0.5  # how soon the end of a process that this one must not outlive is noticed
_KILL_PATIENCE_S = 10.0
_STOPS = (signal.SIGTERM, signal.SIGINT)


class Household:
    def __init__(self, parents: Sequence[int] = ()) -> None:
        """`parents` are processes without which this one shall not be."""
        self.supervisor: int | None = None
        self.is_told_to_stop = False
        self._supervisor_ended = False
        self._parents = [(pid, found.start) for pid in parents if (found := kernel.stat(pid)) is not None]
        if len(self._parents) < len(parents):
            raise SystemExit("one of the processes %s that this one belongs to is gone" % list(parents))
        kernel.set_process_name("windlass-relay")
        kernel.adopt_orphans()
        self._wakeup_fd = self._catch_signals()

    def start(self, act: Callable[[], Any]) -> None:
        """`act` as the supervisor; ranks are bound to its life as it is to this process's."""
        self.supervisor = self.start_aside(act)
        if self.is_told_to_stop:
            self.signal_supervisor(signal.SIGTERM)

    def start_aside(self, act: Callable[[], Any]) -> int:
        """`act` in a child that dies with this process."""
        own = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        # A child that still had this process's handlers would take a signal to stop for its own and lose it.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        pid = fork()
        if pid == 0:
            try:
                reset_signals()
                kernel.die_with_parent(signal.SIGKILL)
                if os.getppid() == own:
                    act()
            except BaseException:
                import traceback  # long to load, and seldom needed

                traceback.print_exc()
            finally:
                os._exit(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
        return pid

    def signal_supervisor(self, number: int) -> None:
        if self.supervisor is not None and not self._supervisor_ended:
            try:
                os.kill(self.supervisor, number)  # it is not reaped yet, so the number is its own
            except ProcessLookupError:
                pass  # reaped a moment ago: this is a signal's handler, and that it was is noted after it

    def supervisor_has_ended(self) -> bool:
        self._reap()
        return self.supervisor is not None and self._supervisor_ended

    def wait(self, seconds: float, bell: Bell | None = None) -> None:
        """Until the time is over, a signal has come or the bell rings."""
        poll = select.poll()
        poll.register(self._wakeup_fd, select.POLLIN)
        if bell is not None:
            poll.register(bell.fileno(), select.POLLIN)
        for fd, _ in poll.poll(1000 * seconds):
            if fd == self._wakeup_fd:
                os.read(fd, 4096)
            elif bell is not None:
                bell.hush()

    def end(self) -> None:
        """Nobody below this process goes on."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        deadline = time.monotonic() + _KILL_PATIENCE_S
        while time.monotonic() < deadline:
            left = [pid for pid in kernel.descendants(os.getpid()) if _runs(pid)]
            if not left:
                return
            _kill(left)
            self._reap()
            time.sleep(0.002)

    def _reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._supervisor_ended = self._supervisor_ended or pid == self.supervisor

    def _catch_signals(self) -> int:
        read, write = os.pipe()
        for fd in (read, write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in _STOPS:
            signal.signal(number, self._on_stop)
        if self._parents:
            signal.signal(signal.SIGALRM, self._look_up)
            signal.setitimer(signal.ITIMER_REAL, _LOOK_UP_S, _LOOK_UP_S)
        return read

    def _on_stop(self, *_: object) -> None:
        """Whoever stops nodes does it like this; without a wish on disk the supervisor takes it for preemption."""
        self.is_told_to_stop = True
        self.signal_supervisor(signal.SIGTERM)

    def _look_up(self, *_: object) -> None:
        if not all(kernel.is_alive(pid, start) for pid, start in self._parents):
            self.end()
            os._exit(1)


class Bell:
    """A datagram socket on which the supervisor tells that something has begun or ended."""

    def __init__(self, folder: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self.path: str | None = os.path.join(folder, "relay-%d.sock" % os.getpid())
        try:
            self._socket.bind(self.path)
        except OSError:
            self.path = None  # too long a path, or a file system without sockets: looking now and then does too

    def __enter__(self) -> Bell:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        if self.path is not None:
            os.unlink(self.path)

    def fileno(self) -> int:
        return self._socket.fileno()

    def hush(self) -> None:
        while True:
            try:
                self._socket.recv(256)
            except BlockingIOError:
                return


def _runs(pid: int) -> bool:
    found = kernel.stat(pid)
    return found is not None and found.state not in "ZX"


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue  # gone already, or a set-uid program that is not ours to kill
