"""Batch scripts and plans against golden files (UPDATE_GOLDEN=1 writes them anew)."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from windlass.core.errors import LaunchFailed
from windlass.core.resources import NodeShare, Placement
from windlass.engines.contract import Launch
from windlass.engines.folders.plans import attempt_dir
from windlass.engines.slurm.plans import render_slurm_plans, token_of
from windlass.engines.slurm.script import Site, effective_timeout_s, merge_options, render_sbatch, time_limit_s
from windlass.wire.slurm import ContainerRuntime, SlurmConfig, SlurmOptions

GOLDEN = Path(__file__).with_name("golden")
SHARED = Path("/shared/windlass")
SITE = Site(shared_dir=SHARED, agent=SHARED / "agent/0123456789abcdef/__main__.py", python="/opt/python/bin/python3")
ONE = Launch(
    run_id="r-bcdfghjkmn",
    attempt_id="r-bcdfghjkmn.1",
    attempt=1,
    placement=Placement(engine="hpc", shares=(NodeShare(node="n1", cpus=1.5, memory_bytes=0),)),
    argv=("python", "train.py"),
    workers_per_node=1,
    self_launching=False,
    env={"LANG": "C.UTF-8"},
    host_env={"HOME": "/of/the/server"},
    origin_env={"VIRTUAL_ENV": "/home/me/venv"},
    code_digest="ab" * 32,
    search_path="/usr/bin:/bin",
)
GANG = replace(
    ONE,
    attempt_id="r-bcdfghjkmn.2",
    attempt=2,
    placement=Placement(
        engine="hpc",
        shares=tuple(
            NodeShare(node=name, cpus=16.0, memory_bytes=64 << 30, gpu_indices=(0, 1, 2, 3)) for name in ("n7", "n3")
        ),
    ),
    workers_per_node=4,
    secrets={"TOKEN": "never written"},
    workdir="/data/my project",
    timeout_s=3600.0,
    grace_s=30.0,
    image="nvcr.io#nvidia/pytorch:26.09-py3",
)
EVERYTHING = SlurmOptions(
    partition="gpu,long",
    account="team-a",
    qos="high",
    constraint="a100&nvlink",
    reservation="maintenance",
    time="1-12:00:00",
    exclusive=True,
    extra=("--switches=1", "--mail-type=FAIL"),
)
PYXIS = replace(SITE, container_runtime=ContainerRuntime.PYXIS)
APPTAINER = replace(SITE, container_runtime=ContainerRuntime.APPTAINER, bin_dir=Path("/opt/slurm/bin"), requeue=True)

SCRIPTS = {
    "one_node": (ONE, SlurmOptions(), SITE),
    "one_node_without_step": (ONE, SlurmOptions(), replace(SITE, single_node_steps=False)),
    "gang_pyxis": (GANG, SlurmOptions(partition="gpu"), PYXIS),
    "gang_apptainer": (replace(GANG, image="/images/torch.sif"), EVERYTHING, APPTAINER),
}


def golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def render(launch: Launch, options: SlurmOptions, site: Site) -> str:
    folder = attempt_dir(SHARED, launch.attempt_id)
    return render_sbatch(launch, options, site, attempt_dir=folder, token=token_of(SHARED, launch.attempt_id))


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_as_agreed(name: str) -> None:
    text = render(*SCRIPTS[name])
    golden(f"slurm_{name}.sh", text)
    assert "never written" not in text
    assert subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode == 0


def test_plans_are_as_agreed() -> None:
    plans = render_slurm_plans(GANG, shared_dir=SHARED, timeout_s=3600.0, rendezvous_s=300.0)
    text = json.dumps(plans, indent=2, sort_keys=True) + "\n"
    golden("slurm_plans.json", text)
    assert "never written" not in text


def test_ranks_keep_the_environment_of_their_job() -> None:
    """The submitter's interpreter is on the shared file system, but not in an image; the server's home is its own."""
    (plan,) = render_slurm_plans(ONE, shared_dir=SHARED, timeout_s=None, rendezvous_s=300.0)
    kept = {"LANG": "C.UTF-8", "WINDLASS_CHECKPOINT_DIR": f"{SHARED}/runs/{ONE.run_id}/checkpoints"}
    assert plan["env"] == {"VIRTUAL_ENV": "/home/me/venv", "PATH": "/usr/bin:/bin", **kept}
    first, _ = render_slurm_plans(GANG, shared_dir=SHARED, timeout_s=None, rendezvous_s=300.0)
    assert first["env"] == kept


def test_an_image_needs_a_container_runtime() -> None:
    with pytest.raises(LaunchFailed, match="container_runtime"):
        render(GANG, SlurmOptions(), SITE)


def test_a_limit_that_nobody_gave_is_warned_of() -> None:
    assert "#SBATCH --signal=TERM@70" in render(ONE, SlurmOptions(), SITE)
    assert "--signal" not in render(replace(ONE, timeout_s=60.0), SlurmOptions(), SITE)
    assert "#SBATCH --time=4\n" in render(replace(ONE, timeout_s=60.0), SlurmOptions(), SITE)


def test_the_spec_wins_over_the_engines_defaults() -> None:
    defaults = SlurmOptions(partition="low", account="a", exclusive=True, extra=("--nice=10",))
    given = SlurmOptions(partition="high", exclusive=False, extra=("--nice=0",))
    merged = merge_options(defaults, given)
    assert (merged.partition, merged.account, merged.exclusive) == ("high", "a", False)
    assert merged.extra == ("--nice=10", "--nice=0")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("10:30", 630), ("2:00:00", 7200), ("1-12", 129600), ("1-12:30", 131400), ("0-00:00:05", 5)],
)
def test_times_are_read_as_slurm_reads_them(text: str, seconds: float) -> None:
    assert time_limit_s(text) == seconds


def test_the_supervisor_keeps_slurms_limit_before_slurm_does() -> None:
    assert effective_timeout_s(ONE, SlurmOptions()) is None
    assert effective_timeout_s(ONE, SlurmOptions(time="10")) == 590.0
    assert effective_timeout_s(replace(ONE, timeout_s=60.0), SlurmOptions(time="10")) == 60.0
    assert effective_timeout_s(replace(ONE, grace_s=900.0), SlurmOptions(time="10")) == 300.0


@pytest.mark.parametrize(
    "options",
    [
        {"partition": "a b"},
        {"qos": "x\n#SBATCH --wrap=id"},
        {"extra": ["--comment=mine"]},
        {"extra": ["--nodelist=n1"]},
        {"extra": ["--switches=1\n--uid=0"]},
        {"extra": ["rm -rf /"]},
        {"time": "tomorrow"},
        {"partitions": "a"},
    ],
)
def test_what_could_break_a_script_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SlurmOptions.model_validate(options)


def test_a_config_needs_a_shared_folder() -> None:
    with pytest.raises(ValidationError, match="shared_dir"):
        SlurmConfig.model_validate({"type": "slurm"})
