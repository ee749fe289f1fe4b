"""A real Slurm for tests: munged, slurmctld and several slurmd on this machine, in a folder and on ports of their own.

Nodes n1, n2, ... offer 8 CPUs and 4 GPUs each, which need not exist. Partition `low` is the default one, and jobs in
`high` preempt those in it after a grace time. Every daemon can be killed and started alone.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "sinfo", "scancel", "scontrol")
_START_PATIENCE_S = 30.0
_SBIN = "/usr/sbin:/sbin:/usr/local/sbin"


class SlurmUnavailable(Exception):
    """There is no Slurm to test with; the message says why."""


class SlurmCluster:
    def __init__(
        self, folder: Path, *, nodes: int, grace_s: int, settings: Mapping[str, str], switches: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self.node_names = [f"n{number}" for number in range(1, nodes + 1)]
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._env = {**os.environ, "SLURM_CONF": str(self.conf), "PATH": f"{os.environ['PATH']}:{_SBIN}"}
        if switches:
            settings = {"TopologyPlugin": "topology/tree", **settings}
            (folder / "topology.conf").write_text("\n".join(switches) + "\n")
        self._write_conf(grace_s, settings)

    # ---- daemons -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        munge = self.folder / "munge"
        socket_path = self.folder / "run" / "munge.socket"
        words = [f"--key-file={munge}/key", f"--socket={socket_path}", f"--pid-file={munge}/pid"]
        words += [f"--log-file={munge}/log", f"--seed-file={munge}/seed", "--num-threads=2", "--force", "--foreground"]
        self._spawn("munged", ["munged", *words])
        wait_until(socket_path.exists, "munged to listen")
        self.start_slurmctld()
        for name in self.node_names:
            self.start_slurmd(name)
        self.wait_for_nodes()

    def start_slurmctld(self) -> None:
        self._spawn("slurmctld", ["slurmctld", "-D", "-i"])

    def start_slurmd(self, node: str) -> None:
        self._spawn(node, ["slurmd", "-D", "-N", node])

    def kill(self, daemon: str) -> None:
        """`slurmctld` or a node's name. What it had started goes on."""
        process = self._daemons.pop(daemon)
        process.kill()
        process.wait()

    def end(self, daemon: str) -> None:
        """In good order: what it knows is on disk. Killed, slurmctld forgets jobs of the last seconds, and has them
        killed when it comes back."""
        process = self._daemons.pop(daemon)
        process.terminate()
        process.wait()

    def is_up(self, daemon: str) -> bool:
        return daemon in self._daemons

    def wait_for_nodes(self) -> None:
        def all_fit() -> bool:
            states = self.ask("sinfo", "-h", "-N", "-o", "%T", check=False).split()
            return len(states) >= len(self.node_names) and set(states) <= {"idle", "mixed", "allocated"}

        wait_until(all_fit, "all nodes to be up")

    def recover(self) -> None:
        """As new: no jobs, all daemons up, all nodes fit."""
        if not self.is_up("slurmctld"):
            self.start_slurmctld()
        for name in self.node_names:
            if not self.is_up(name):
                self.start_slurmd(name)
        wait_until(lambda: "UP" in self.ask("scontrol", "ping", check=False), "slurmctld to answer")
        self.cancel_all()
        for name in self.node_names:
            self.ask("scontrol", "update", f"nodename={name}", "state=resume", check=False)
        self.wait_for_nodes()

    def cancel_all(self) -> None:
        def none_left() -> bool:
            job_ids = self.ask("squeue", "-h", "-a", "-o", "%i", check=False).split()
            if job_ids:
                self.ask("scancel", *job_ids, check=False)
            return not job_ids

        wait_until(none_left, "all jobs to end")

    def stop(self) -> None:
        with contextlib.suppress(AssertionError):
            if self.is_up("slurmctld"):
                self.cancel_all()
        for process in self._daemons.values():
            process.kill()  # an orderly end takes seconds, and saves what nobody needs
        for process in self._daemons.values():
            process.wait()
        self._daemons.clear()
        self._end_steps()

    def _end_steps(self) -> None:
        """A step whose slurmctld has forgotten its job waits for ever. They are known by files of theirs in our folder:
        their arguments and environment say nothing."""
        for comm in Path("/proc").glob("[0-9]*/comm"):
            with contextlib.suppress(OSError):
                if comm.read_text().strip() != "slurmstepd":
                    continue
                files = [os.readlink(file) for file in (comm.parent / "fd").iterdir()]
                if any(file.startswith(f"{self.folder}/") for file in files):
                    os.kill(int(comm.parent.name), signal.SIGKILL)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._daemons.values()]

    def _spawn(self, name: str, command: list[str]) -> None:
        with open(self.folder / "log" / f"{name}.out", "ab") as log:
            self._daemons[name] = subprocess.Popen(
                command, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    # ---- commands ------------------------------------------------------------------------------------------------

    def ask(self, *command: str, check: bool = True) -> str:
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0 or not check, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def job_state(self, job_id: str) -> str:
        return self.ask("squeue", "-h", "-a", "-t", "all", "-j", job_id, "-o", "%T", check=False).strip()

    def counting_commands(self, folder: Path) -> tuple[Path, Path]:
        """Slurm's commands with a log: a folder with programs that write their name into a file and go on as usual."""
        folder.mkdir(parents=True)
        counts = folder / "calls"
        for name in ("sbatch", "squeue", "sinfo", "scancel", "sacct", "srun", "scontrol"):
            program = shutil.which(name, path=self._env["PATH"])
            (folder / name).write_text(f'#!/bin/sh\necho {name} >> "{counts}"\nexec {program} "$@"\n')
            (folder / name).chmod(0o755)
        return folder, counts

    # ---- configuration -------------------------------------------------------------------------------------------

    def _write_conf(self, grace_s: int, settings: Mapping[str, str]) -> None:
        for name in ("state", "log", "run", "dev", "munge", *(f"spool/{node}" for node in self.node_names)):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "munge").chmod(0o700)
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        port = _free_ports(len(self.node_names) + 1)
        host = socket.gethostname().partition(".")[0]
        nodes = f"n[1-{len(self.node_names)}]"
        common = {
            "ClusterName": "t",
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmctldPort": str(port),
            "SlurmUser": getpass.getuser(),
            "SlurmdUser": getpass.getuser(),
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self.folder}/run/munge.socket",
            "StateSaveLocation": f"{self.folder}/state",
            "SlurmdSpoolDir": f"{self.folder}/spool/%n",
            "SlurmctldPidFile": f"{self.folder}/run/slurmctld.pid",
            "SlurmdPidFile": f"{self.folder}/run/slurmd.%n.pid",
            "SlurmctldLogFile": f"{self.folder}/log/slurmctld.log",
            "SlurmdLogFile": f"{self.folder}/log/slurmd.%n.log",
            "MpiDefault": "none",
            # Control groups are not to be had everywhere.
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "JobAcctGatherType": "jobacct_gather/none",
            "SwitchType": "switch/none",
            "ReturnToService": "2",
            "SlurmctldTimeout": "30",
            "SlurmdTimeout": "10",
            "MessageTimeout": "5",
            "InactiveLimit": "0",
            "KillWait": "3",
            "MinJobAge": "300",
            "BatchStartTimeout": "10",
            "SchedulerType": "sched/backfill",
            "SchedulerParameters": "sched_interval=2,bf_interval=2,sched_min_interval=0,batch_sched_delay=0",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core_Memory",
            "DefMemPerCPU": "100",
            "SlurmdParameters": "config_overrides",
            "GresTypes": "gpu",
            "PreemptType": "preempt/partition_prio",
            "PreemptMode": "CANCEL",
            "JobRequeue": "1",
            "AccountingStorageType": "accounting_storage/none",
            **settings,
        }
        lines = [f"{name}={value}" for name, value in common.items()]
        lines += [
            f"NodeName={nodes} NodeHostName={host} NodeAddr=127.0.0.1 Port=[{port + 1}-{port + len(self.node_names)}] "
            "CPUs=8 RealMemory=4000 Gres=gpu:fake:4 State=UNKNOWN",
            f"PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime={grace_s}",
            "PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10",
        ]
        self.conf.write_text("\n".join(lines) + "\n")
        (self.folder / "gres.conf").write_text(f"NodeName={nodes} Name=gpu Type=fake {self._devices()}\n")

    def _devices(self) -> str:
        if os.getuid() != 0:
            return "Count=4"  # without devices; jobs are not told which ones they have then
        for number in range(4):
            os.mknod(self.folder / "dev" / f"gpu{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        return f"File={self.folder}/dev/gpu[0-3]"


@contextlib.contextmanager
def running_slurm(
    *,
    nodes: int = 3,
    grace_s: int = 5,
    settings: Mapping[str, str] | None = None,
    switches: Sequence[str] = (),
) -> Iterator[SlurmCluster]:
    """A cluster that is gone, with its jobs, when the block ends. Raises SlurmUnavailable if there is none to run.
    `switches`: the lines of topology.conf, where nodes are to be in a tree."""
    path = f"{os.environ.get('PATH', os.defpath)}:{_SBIN}"
    missing = [name for name in _PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        raise SlurmUnavailable(f"no {', '.join(missing)} here; apt-get install slurm-wlm munge")
    folder = Path(tempfile.mkdtemp(prefix="windlass-slurm-"))
    folder.chmod(0o755)  # jobs of other users read the configuration
    cluster = SlurmCluster(folder, nodes=nodes, grace_s=grace_s, settings=settings or {}, switches=switches)
    try:
        try:
            cluster.start()
        except (AssertionError, OSError) as error:
            raise SlurmUnavailable(f"{error}; see {_tail(folder)}") from error
        watcher = _end_with_this_process(cluster)
        try:
            yield cluster
        finally:
            cluster.stop()
            watcher.kill()
            watcher.communicate()
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def wait_until(condition: Callable[[], bool], what: str, *, patience_s: float = _START_PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {patience_s:g} s in vain for {what}"
        time.sleep(0.02)


def _free_ports(count: int) -> int:
    """The first of `count` ports in a row that nobody listens on, below those for outgoing connections."""
    for _ in range(100):
        first = random.SystemRandom().randrange(12_000, 31_000)
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise SlurmUnavailable(f"no {count} free ports in a row")


def _end_with_this_process(cluster: SlurmCluster) -> subprocess.Popen[bytes]:
    """A process of its own that waits for the end of this one, also by SIGKILL, and then stops the cluster."""
    script = (
        'read _; SLURM_CONF="$1/slurm.conf" timeout 5 scancel -u "$(id -un)"; sleep 4; '
        'folder="$1"; shift; kill -KILL "$@"; rm -rf "$folder"'
    )
    command = ["/bin/sh", "-c", script, "windlass-slurm-watcher", str(cluster.folder), *map(str, cluster.pids)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)


def _tail(folder: Path) -> str:
    texts = [path.read_text(errors="replace")[-500:] for path in sorted((folder / "log").glob("*"))]
    return " | ".join(text for text in texts if text)
