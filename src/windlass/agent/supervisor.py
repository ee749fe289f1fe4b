"""The supervisor: one process per node of an attempt, in its own session, that outlives whoever asked for it.

Launching is idempotent: the lock, the status and the outcome in the node's folder decide who may go on, and whoever
comes second leaves at once without a trace.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
import time
from typing import Any, Mapping, Sequence, Union

from . import comeback, gang, kernel, layout, memory, outcome, rendezvous, rescue, snapshot, surroundings
from .command import CannotStart, resolve_command
from .environ import allotted_devices, argv_of, global_rank, inherited_environment, rank_environment, ranks_per_node
from .files import read_json
from .masking import Mask
from .ports import free_port
from .ranklog import RankLog
from .ranks import RankCommand, Started, Step, WarmState, reset_signals, start_rank
from .recovery import Failed
from .restarts import Restarts
from .status import Status
from .target import sees_the_difference, warm_target
from .watch import FROM_OUTSIDE, Watch
from .watched import start_watcher

_GIVE_UP_ROUNDS = 10  # what a process starts while it is being killed is met in the next


def supervise(
    node_dir: str, secrets: Mapping[str, str], warm: WarmState | None, job: Mapping[str, Any] | None = None
) -> Step | None:
    """Run the node's plan to its end and leave. Returns only in a warm rank: the step that runs the script.

    With a `job` it is a task of a cluster's own step, which knows its processes by their session and must not lose it.
    Nothing here may be undone in `finally`: the rank comes through the same frames.
    """
    if job is None:
        os.setsid()
    reset_signals()
    lock_fd = _acquire(node_dir)
    if lock_fd is None:
        os._exit(0)
    wakeup_fd = _catch_signals()
    try:
        _redirect_output(node_dir)
        kernel.set_process_name("windlass-node")
        kernel.adopt_orphans()
        outcome.reserve(node_dir)
        status = Status(node_dir, **({} if job is None else {"job": dict(job)}))
        status.create()
        comeback.forget_progress(node_dir)  # of a former life: a cluster may start a node's part again
        plan = read_json(os.path.join(node_dir, layout.PLAN))
        assert plan is not None
        result = _run(plan, secrets, warm, status, wakeup_fd)
        if callable(result):
            return result
        outcome.write(node_dir, result)
        _notify(plan)
        _give_memory_back(plan, result)
    except Exception as error:
        _print_exception()
        _give_up(node_dir, error)
    sys.stderr.flush()
    os._exit(0)


def _acquire(node_dir: str) -> int | None:
    """The lock, if this process is the one to run the node; it is held until the process ends."""
    if not os.path.exists(os.path.join(node_dir, layout.PLAN)):
        return None  # released in the meantime
    fd = os.open(os.path.join(node_dir, layout.LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    # With a status but no outcome, an earlier supervisor has died: ranks may have run, so it is lost, not to be
    # started again under the same name.
    if outcome.exists(node_dir) or os.path.exists(os.path.join(node_dir, layout.STATUS)):
        return None
    return fd


def _run(
    plan: dict[str, Any], secrets: Mapping[str, str], warm: WarmState | None, status: Status, wakeup_fd: int
) -> Union[dict[str, Any], Step]:
    if os.path.exists(os.path.join(plan["node_dir"], layout.STOP)):
        return _stopped_before(plan)
    if plan.get("gpus_from_environment"):
        plan.update(allotted_devices(os.environ, plan["gpu_count"]))
    if plan.get("inherits_environment"):
        plan["env"] = {**inherited_environment(os.environ), **plan["env"]}
    plan["memory_dir"] = memory.memory_folder(plan)
    try:
        if plan.get("rendezvous") and not rendezvous.meet(plan, free_port(""), wakeup_fd):
            return _stopped_before(plan)
    except CannotStart as problem:
        return outcome.never_started("launch_failed", problem.message, time.time(), problem.code)
    restarts = Restarts(plan, status, gang.open_line(plan), lambda: free_port(""))
    watch = Watch(plan=plan, status=status, wakeup_fd=wakeup_fd, restarts=restarts)
    try:
        commands = _prepare(plan, secrets, warm)
        step = _start_ranks(plan, commands, warm, watch, status, Mask(secrets.values()))
    except CannotStart as problem:
        watch.abandon()
        return outcome.never_started("launch_failed", problem.message, time.time(), problem.code)
    if step is not None:
        return step
    status.change(state="running", started_at=watch.started_at)
    _notify(plan)
    watch.leave_alone(_record_surroundings(plan, commands[0]))
    memory.sweep()
    while True:
        result: Union[dict[str, Any], Step, Failed, None] = watch.run()
        if isinstance(result, Failed):
            result = _start_again(plan, secrets, warm, watch, restarts, status, result)
        if isinstance(result, dict):
            rescue.save_what_is_left(plan, commands[0].env, result)
        if result is not None:
            return result


def _record_surroundings(plan: Mapping[str, Any], first: RankCommand) -> int | None:
    """The process that will, if there is one. The record is worth no run: whatever keeps it from being written, such as
    a full disk, is only said."""
    try:
        return surroundings.record(plan, first.program, first.env)
    except Exception:
        _print_exception()
        return None


def _start_ranks(
    plan: Mapping[str, Any],
    commands: Sequence[RankCommand],
    warm: WarmState | None,
    watch: Watch,
    status: Status,
    mask: Mask,
) -> Step | None:
    """A step in a warm rank. Raises CannotStart; then some may have been started."""
    for command in commands:
        log = RankLog(os.path.join(plan["node_dir"], layout.rank_log(command.rank)), mask, plan.get("log_limit_bytes"))
        started = start_rank(command, warm)
        if not isinstance(started, Started):
            return started
        watch.add(command.rank, started.pid, started.out_fd, started.err_fd, log)
        if command.rank == 0:
            start_watcher(command.env, command.cwd, started.pid)
        status.add_rank(command.rank, started.pid)
    return None


def _start_again(
    plan: dict[str, Any],
    secrets: Mapping[str, str],
    warm: WarmState | None,
    watch: Watch,
    restarts: Restarts,
    status: Status,
    failed: Failed,
) -> Union[dict[str, Any], Step, None]:
    """All ranks of the node, after a failure: in the same attempt, as its next generation. The outcome if that cannot
    be done."""
    # Whoever of the old ranks is not quite gone, here or elsewhere, must not meet the new ones.
    plan.update(generation=failed.generation, master_port=restarts.port)
    restarts.begin()
    watch.begin_again(failed)
    try:
        commands = [_command(plan, local, secrets, warm) for local in range(ranks_per_node(plan))]
        step = _start_ranks(plan, commands, warm, watch, status, Mask(secrets.values()))
    except CannotStart as problem:
        return watch.give_up(failed, problem.message)
    if step is not None:
        return step
    restarts.begun(failed)
    status.change(state="running")
    return None


def _stopped_before(plan: Mapping[str, Any]) -> dict[str, Any]:
    """It was told to end before a rank was started."""
    wish = read_json(os.path.join(plan["node_dir"], layout.STOP))
    kind, reason = (wish["kind"], wish["reason"]) if wish else ("preempted", FROM_OUTSIDE)
    return outcome.never_started(str(kind), str(reason), time.time())


def _prepare(plan: dict[str, Any], secrets: Mapping[str, str], warm: WarmState | None) -> list[RankCommand]:
    """Everything that can be found wrong before a rank starts."""
    workdir = plan["workdir"]
    os.makedirs(os.path.join(plan["run_dir"], "model"), exist_ok=True)
    if plan["code"] is not None:
        code = plan["code"]
        snapshot.lay_out(
            run_dir=plan["run_dir"],
            workdir=workdir,
            manifest=code["manifest"],
            blobs=code["blobs"],
            attempt_id=plan["attempt_id"],
        )
    elif os.path.dirname(workdir) == plan["run_dir"]:
        os.makedirs(workdir, exist_ok=True)  # without code of its own it has an empty folder
    if not os.path.isdir(workdir):
        raise CannotStart("the working folder '%s' does not exist" % workdir)
    if not plan["master_port"]:
        plan["master_port"] = free_port()
    return [_command(plan, local, secrets, warm) for local in range(ranks_per_node(plan))]


def _command(
    plan: Mapping[str, Any], local_rank: int, secrets: Mapping[str, str], warm: WarmState | None
) -> RankCommand:
    rank, workdir = global_rank(plan, local_rank), plan["workdir"]
    argv = argv_of(plan, rank)
    env = {**rank_environment(plan, local_rank), **secrets}
    program = resolve_command(argv, env.get("PATH", os.defpath), workdir)
    target = warm_target(argv, program=program, interpreter=warm.interpreter if warm else None)
    if target is not None and sees_the_difference(target, cwd=workdir, loaded=list(sys.modules)):
        target = None
    if target is not None and plan["env"].get("PYTHONUNBUFFERED"):
        target = target._replace(unbuffered=True)  # asked for by the user; our own default means line by line
    return RankCommand(rank, argv, program, env, workdir, target)


def _catch_signals() -> int:
    """The file that can be read for SIGCHLD, SIGTERM and SIGCONT, which says that there may be a wish to stop: Slurm
    signals all processes of a job alike, and that one hurts nobody."""
    read, write = os.pipe()
    for fd in (read, write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGCONT):
        signal.signal(number, _noticed)
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    return read


def _noticed(number: int, frame: object) -> None:
    """The number is in the wake-up file already."""


def _redirect_output(node_dir: str) -> None:
    log = os.open(
        os.path.join(node_dir, layout.SUPERVISOR_LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
    )
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(null)
    os.close(log)


def _give_memory_back(plan: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """Copies of the ranks' state are for the next attempt; after completion there is none, and most never made one."""
    folder = plan.get("memory_dir")
    if folder and (result["reason"] == "completed" or memory.is_unused(folder)):
        memory.forget(folder)


def _notify(plan: Mapping[str, Any]) -> None:
    """Tell the engine to look now. It looks anyway, so nobody waits for this and nothing depends on it."""
    if not plan["notify_socket"]:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        try:
            sender.sendto(plan["attempt_id"].encode(), plan["notify_socket"])
        except OSError:
            return  # the server is away or busy


def _give_up(node_dir: str, error: Exception) -> None:
    """A defect of ours or a broken disk: leave no process behind, and say so if the disk lets us."""
    for _ in range(_GIVE_UP_ROUNDS):
        for pid in kernel.descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
    message = "the supervisor failed: %s: %s" % (type(error).__name__, error)
    try:
        outcome.write(node_dir, outcome.never_started("lost", message, time.time()))
    except OSError:
        _print_exception()


def _print_exception() -> None:
    import traceback  # long to load, and seldom needed

    traceback.print_exc()
