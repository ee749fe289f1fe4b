"""Slurm's own commands, and what their failures mean. Every call costs slurmctld a request: see `watcher` for how many
there are."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from windlass.core.errors import LaunchFailed, Unavailable
from windlass.engines.slurm.switches import parse_switches
from windlass.engines.slurm.tables import (
    JOB_COLUMNS,
    NODE_COLUMNS,
    JobRow,
    NodeRow,
    PastJob,
    format_columns,
    parse_graces,
    parse_jobs,
    parse_nodes,
    parse_past_jobs,
)

SUBMIT_TIMEOUT_S = 10.0
_LISTING_TIMEOUT_S = 15.0
_INHERITED = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "SLURM_CONF",
    "LD_LIBRARY_PATH",
    "KRB5CCNAME",
    "WINDLASS_SPOT_ENDPOINT",
    "WINDLASS_SPOT_EVERY_S",
)
# Of switches; older versions cut them off after 512 characters.
_WHOLE_LINES = {"SLURM_TOPO_LEN": "100000000"}
# Said by sbatch when slurmctld was not reached, or was too busy: the same submission may be taken later.
_PASSING = (
    *("unable to contact", "timed out", "temporarily unable", "resource temporarily", "connection refused"),
    *("zero bytes were transmitted", "communication", "standby mode", "transport", "connect failure", "munge"),
    *("authentication", "try again", "no route to host", "unexpected message", "slurmdbd", "establish a configuration"),
)


def find_commands(bin_dir: Path | None) -> Path | None:
    """Where Slurm's commands are: as told, or as found here, which is where nodes usually have them too."""
    found = shutil.which("srun")
    return bin_dir or (Path(found).parent if found else None)


class Slurm:
    """Safe to use from several threads."""

    def __init__(self, *, bin_dir: Path | None = None, conf: Path | None = None) -> None:
        self._bin_dir = bin_dir
        self._env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        if conf is not None:
            self._env["SLURM_CONF"] = str(conf)

    def submit(self, script: Path, env: Mapping[str, str]) -> str:
        """The job's id. Raises LaunchFailed if Slurm refuses it, Unavailable if it may or may not have taken it."""
        done = self._run(["sbatch", "--parsable", str(script)], timeout_s=SUBMIT_TIMEOUT_S, env=env)
        said = done.stderr.decode(errors="replace").strip()
        if done.returncode == 0:
            return done.stdout.decode().strip().partition(";")[0]
        if any(word in said.lower() for word in _PASSING):
            raise Unavailable(f"sbatch: {said}")
        raise LaunchFailed(f"Slurm refused the job: {said or f'sbatch exited with {done.returncode}'}")

    def list_jobs(self) -> list[JobRow]:
        """Those of this process's user; ended ones too, as long as slurmctld remembers them."""
        words = ["squeue", "-h", "-a", "-t", "all", "-u", str(os.getuid()), "-O", format_columns(JOB_COLUMNS)]
        return parse_jobs(self._listing(words))

    def list_nodes(self, partition: str | None) -> list[NodeRow]:
        words = ["sinfo", "-h", "-a", "-N", "-O", format_columns(NODE_COLUMNS)]
        return parse_nodes(self._listing([*words, f"--partition={partition}"] if partition else words))

    def list_graces(self) -> dict[str, int]:
        return parse_graces(self._listing(["scontrol", "show", "partition", "-o"]))

    def list_switches(self) -> dict[str, tuple[str, ...]]:
        """Those above each node, the widest first; none where Slurm knows of none."""
        return parse_switches(self._listing(["scontrol", "-o", "show", "topology"], env=_WHOLE_LINES))

    def list_past_jobs(self, job_ids: Sequence[str]) -> list[PastJob] | None:
        """None where no accounting is kept, or cannot be read from here."""
        if self._find("sacct") is None:
            return None
        words = ["sacct", "-X", "-n", "-P", "-j", ",".join(job_ids), "--format=JobIDRaw,State,JobName%160"]
        done = self._run(words, timeout_s=_LISTING_TIMEOUT_S)
        said = done.stderr.decode(errors="replace").strip()
        if done.returncode != 0:
            if "disabled" in said.lower():
                return None
            raise Unavailable(f"sacct: {said or done.returncode}")
        return parse_past_jobs(done.stdout)

    def cancel(self, job_ids: Sequence[str]) -> None:
        self._scancel([], job_ids)

    def nudge(self, job_ids: Sequence[str]) -> None:
        """SIGCONT to every process of the jobs: harmless to all, and supervisors look for a wish to stop."""
        self._scancel(["--full", "--signal=CONT"], job_ids)

    def _scancel(self, options: Sequence[str], job_ids: Sequence[str]) -> None:
        done = self._run(["scancel", *options, *job_ids], timeout_s=_LISTING_TIMEOUT_S)
        said = done.stderr.decode(errors="replace").strip()
        # A job that has ended meanwhile is what was wanted.
        if done.returncode != 0 and any(word in said.lower() for word in _PASSING):
            raise Unavailable(f"scancel: {said}")

    def _listing(self, words: Sequence[str], env: Mapping[str, str] | None = None) -> bytes:
        done = self._run(words, timeout_s=_LISTING_TIMEOUT_S, env=env)
        if done.returncode != 0:
            raise Unavailable(f"{words[0]}: {done.stderr.decode(errors='replace').strip() or done.returncode}")
        return done.stdout

    def _run(
        self, words: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        program = self._find(words[0])
        if program is None:
            raise Unavailable(f"there is no {words[0]} {f'in {self._bin_dir}' if self._bin_dir else 'on PATH'}")
        try:
            return subprocess.run(
                [program, *words[1:]],
                env={**self._env, **(env or {})},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout_s,
                cwd="/",
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{words[0]} did not answer within {timeout_s:g} s") from None
        except OSError as error:
            raise Unavailable(f"cannot run {program}: {error.strerror}") from error

    def _find(self, name: str) -> str | None:
        return shutil.which(name, path=str(self._bin_dir) if self._bin_dir else self._env.get("PATH"))
