"""Starting the rank processes of a node, by execution or in place in a warm interpreter."""

from __future__ import annotations

import fcntl
import functools
import os
import signal
import warnings
from typing import Any, Callable, Mapping, NamedTuple, Union

from . import kernel
from .command import CannotStart
from .environ import argv_of, is_essential
from .ranklog import RankLog
from .target import Target

Step = Callable[[], Any]  # returns the next step, or None
_PIPE_BYTES = 256 * 1024  # a talkative rank should not have to wait for every wake-up of its supervisor
_F_SETPIPE_SZ = 1031
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh"))


class WarmState(NamedTuple):
    """What a warm launcher's forks have to know about the process they come from."""

    interpreter: str
    mark_address: int | None
    kept_fds: frozenset[int]  # open since its imports: they belong to modules


class RankCommand(NamedTuple):
    rank: int
    argv: tuple[str, ...]
    program: str
    env: Mapping[str, str]
    cwd: str
    target: Target | None


class Rank:
    """A process that was started, as its supervisor follows it."""

    def __init__(self, *, rank: int, pid: int, log: RankLog, plan: Mapping[str, Any]) -> None:
        self.rank = rank
        self.pid = pid
        self.log = log
        self.essential = is_essential(plan, rank)
        # A shell does not pass signals on, so its whole group gets them; other programs look after their children,
        # and workers killed under their hands would spoil an orderly end.
        self.signals_group = os.path.basename(argv_of(plan, rank)[0]) in _SHELLS
        self.end: dict[str, Any] | None = None


class Started(NamedTuple):
    pid: int
    out_fd: int
    err_fd: int


def start_rank(command: RankCommand, warm: WarmState | None) -> Union[Started, Step]:
    """Started in the supervisor; in the new process, if it is a warm one, the step that runs the script.
    Raises CannotStart if the program cannot be executed."""
    out_read, out_write = _pipe()
    err_read, err_write = _pipe()
    error_read, error_write = os.pipe()
    parent = os.getpid()
    pid = fork()
    if pid == 0:
        try:
            _become_rank(parent, command.cwd, out_write, err_write)
            if command.target is not None and warm is not None:
                return _warm_step(command, command.target, warm)
            _execute(command)
        except BaseException as error:
            os.write(error_write, repr(getattr(error, "errno", None) or str(error)).encode())
            os._exit(127)
    for fd in (out_write, err_write, error_write):
        os.close(fd)
    with open(error_read, "rb") as file:
        problem = file.read()  # ends with the execution, or with the warm rank closing its files
    if problem:
        os.close(out_read)
        os.close(err_read)
        os.waitpid(pid, 0)
        raise _explain(command, problem.decode())
    return Started(pid, out_read, err_read)


def fork() -> int:
    """Libraries may have threads by now; none of them is in our code, which is what the warning of 3.12 is about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGCONT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _close_files_except(kept: frozenset[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in kept:
            try:
                os.close(fd)
            except OSError:
                continue  # the one that listed the folder


def _become_rank(parent: int, cwd: str, out: int, err: int) -> None:
    os.setpgid(0, 0)
    kernel.die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(127)
    reset_signals()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.chdir(cwd)


def _execute(command: RankCommand) -> None:
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    os.execve(command.program, list(command.argv), dict(command.env))


def _warm_step(command: RankCommand, target: Target, warm: WarmState) -> Step:
    from .script import run_target  # a warm launcher has it loaded; others have no use for it

    if warm.mark_address is not None:
        kernel.write_mark(warm.mark_address, command.env[kernel.MARK])
    coerced = {name: os.environ[name] for name in ("LC_CTYPE",) if name in os.environ}
    os.environ.clear()
    os.environ.update({**coerced, **command.env})  # an interpreter in the C locale sets this for itself
    _close_files_except(warm.kept_fds)
    return functools.partial(run_target, target, command.argv, command.program)


def _pipe() -> tuple[int, int]:
    read, write = os.pipe()
    try:
        fcntl.fcntl(write, _F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        pass  # the user's pipes are over their limit; the default size works too
    os.set_blocking(read, False)
    return read, write


def _explain(command: RankCommand, problem: str) -> CannotStart:
    if problem.isdigit():
        number = int(problem)
        hint = "; its first line must name an interpreter (#!/bin/sh)" if number == 8 else ""
        return CannotStart("cannot execute '%s': %s%s" % (command.argv[0], os.strerror(number), hint), 126)
    return CannotStart("cannot start '%s': %s" % (command.argv[0], problem))
