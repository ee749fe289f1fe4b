"""The job of an attempt as a batch script: `render_sbatch`, pure.

The script runs on the job's first node and starts one supervisor per node as a step; a single node can do without.
Exit codes of supervisors say nothing about the run: one that is not 0 means that a supervisor died, and then the others
are ended at once.
"""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from pathlib import Path

from windlass.core.errors import LaunchFailed
from windlass.engines.contract import Launch
from windlass.wire.slurm import ContainerRuntime, SlurmOptions

_MARGIN_S = 60.0  # Slurm looks at time limits about this often
_MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What is the same for all jobs of an engine."""

    shared_dir: Path
    agent: Path  # the agent's __main__.py, in the shared folder
    python: str
    container_runtime: ContainerRuntime = ContainerRuntime.NONE
    container_python: str = "python3"
    requeue: bool = False
    single_node_steps: bool = True
    bin_dir: Path | None = None


def job_name(attempt_id: str) -> str:
    return f"windlass-{attempt_id}"


def render_sbatch(launch: Launch, options: SlurmOptions, site: Site, *, attempt_dir: Path, token: str) -> str:
    lines = ["#!/bin/sh", *(f"#SBATCH {directive}" for directive in _directives(launch, options, site, token))]
    lines += [f"#SBATCH --output={attempt_dir}/slurm.log", "#SBATCH --open-mode=append", ""]
    lines += [f"exec {_step(launch, site, attempt_dir)}", ""]
    return "\n".join(lines)


def merge_options(defaults: SlurmOptions, given: SlurmOptions) -> SlurmOptions:
    """The spec's section over the engine's; extra directives of both, the spec's last."""
    chosen = {name: value for name, value in given.model_dump().items() if value is not None and name != "extra"}
    return defaults.model_copy(update={**chosen, "extra": (*defaults.extra, *given.extra)})


def time_limit_s(text: str) -> float:
    """`90` minutes, `10:30` minutes and seconds, `2:00:00`, `1-12` days and hours, `1-12:30:00`."""
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, [*parts, 0][:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60.0 + seconds


def effective_timeout_s(launch: Launch, options: SlurmOptions) -> float | None:
    """A time limit given to Slurm is kept by the supervisor, with grace, before Slurm would enforce it without."""
    if options.time is None:
        return launch.timeout_s
    limit_s = time_limit_s(options.time)
    own_s = max(limit_s - launch.grace_s, limit_s / 2)
    return own_s if launch.timeout_s is None else min(launch.timeout_s, own_s)


def _directives(launch: Launch, options: SlurmOptions, site: Site, token: str) -> list[str]:
    shares = launch.placement.shares
    words = [
        f"--job-name={job_name(launch.attempt_id)}",
        f"--comment={token}",
        f"--nodes={len(shares)}",
        f"--nodelist={','.join(share.node for share in shares)}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={_cpus(launch)}",
    ]
    memory_bytes = max(share.memory_bytes for share in shares)
    if memory_bytes:
        words.append(f"--mem={math.ceil(memory_bytes / _MEGABYTE)}M")
    gpus = max(len(share.gpu_indices) for share in shares)
    if gpus:
        words.append(f"--gres=gpu:{gpus}")
    words += _times(launch, options, in_step=_has_step(launch, site))
    for name in ("partition", "account", "qos", "constraint", "reservation"):
        if value := getattr(options, name):
            words.append(f"--{name}={value}")
    if options.exclusive:
        words.append("--exclusive")
    # A second run of the same job would find that its attempt has been, and leave: retries are decided elsewhere.
    words.append("--requeue" if site.requeue else "--no-requeue")
    # All that sbatch itself is given, which is little: search path, home, and the secrets, which are therefore neither
    # here nor on a command line. Naming variables instead would make slurmd start a login shell first, for seconds.
    return [*words, "--export=ALL", *options.extra]


def _has_step(launch: Launch, site: Site) -> bool:
    return len(launch.placement.shares) > 1 or launch.image is not None or site.single_node_steps


def _times(launch: Launch, options: SlurmOptions, *, in_step: bool) -> list[str]:
    if options.time is not None:
        return [f"--time={options.time}"]
    if launch.timeout_s is not None:
        # The supervisor ends it in time; this is for the case that it cannot.
        return [f"--time={math.ceil((launch.timeout_s + launch.grace_s + 2 * _MARGIN_S) / 60)}"]
    # There may be a limit of the partition's that nobody told us: be warned of it as of a preemption.
    return [f"--signal={'' if in_step else 'B:'}TERM@{math.ceil(launch.grace_s + _MARGIN_S)}"]


def _cpus(launch: Launch) -> int:
    return max(1, max(math.ceil(share.cpus) for share in launch.placement.shares))


def _step(launch: Launch, site: Site, attempt_dir: Path) -> str:
    command = ["-I", "-S", str(site.agent), "step", str(attempt_dir)]
    if not _has_step(launch, site):
        return shlex.join([site.python, *command])
    srun = str(site.bin_dir / "srun") if site.bin_dir else "srun"
    words = [srun, "--ntasks-per-node=1", f"--cpus-per-task={_cpus(launch)}", "--kill-on-bad-exit=1", "--export=ALL"]
    python = site.python
    if launch.image is not None:
        python = site.container_python
        mounts = [str(site.shared_dir), *([launch.workdir] if launch.workdir else [])]
        if site.container_runtime is ContainerRuntime.PYXIS:
            words += [f"--container-image={launch.image}", "--no-container-mount-home"]
            words.append(f"--container-mounts={','.join(f'{path}:{path}' for path in mounts)}")
        elif site.container_runtime is ContainerRuntime.APPTAINER:
            words += ["apptainer", "exec"]
            if any(share.gpu_indices for share in launch.placement.shares):
                words.append("--nv")
            words += [word for path in mounts for word in ("--bind", path)]
            words.append(launch.image)
        else:
            raise LaunchFailed(
                f"the image '{launch.image}' cannot be run: this engine has no container runtime; "
                "set container_runtime to pyxis or apptainer in its config, or leave `image` out"
            )
    return shlex.join([*words, python, *command])
