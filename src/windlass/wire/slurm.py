"""What can be said about Slurm: the `slurm` section of a spec, and an engine in the server's config."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from windlass.wire.strict import StrictModel

# Words that end up in `#SBATCH --option=WORD`: one line, no quoting.
Word = Annotated[str, StringConstraints(pattern=r"^[^\s\"'#$`\\<>]+$", max_length=400)]
# What makes a job an attempt of ours cannot be said differently, and the rest of these have a place of their own.
_OURS = (
    *("comment", "job-name", "nodes", "nodelist", "ntasks", "ntasks-per-node", "cpus-per-task", "mem", "gres"),
    *("requeue", "no-requeue", "export", "export-file", "output", "error", "input", "open-mode", "signal", "wrap"),
    *("array", "chdir", "parsable", "hold", "uid", "gid", "wait", "test-only"),
    *("partition", "account", "qos", "constraint", "reservation", "time", "exclusive"),
)


def _leaves_ours_alone(directive: str) -> str:
    name = directive.lstrip("-").partition("=")[0].partition(" ")[0]
    if name in _OURS:
        raise ValueError(f"'{directive}' cannot be given here: Windlass sets --{name} itself, or has a field for it")
    return directive


Directive = Annotated[
    str,
    StringConstraints(pattern=r"^--[a-z][a-z-]*(=[^\n\r]*)?$", max_length=400),
    AfterValidator(_leaves_ours_alone),
]
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# Slurm's own ways to write a time: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]].
TimeLimit = Annotated[str, StringConstraints(pattern=r"^(\d+-)?\d+(:\d{1,2}){0,2}$")]


class ContainerRuntime(StrEnum):
    NONE = "none"
    PYXIS = "pyxis"
    APPTAINER = "apptainer"


class SlurmOptions(StrictModel):
    """The spec's `slurm:` section; what is given here wins over the engine's defaults."""

    partition: Word | None = Field(None, description="one, or several separated by commas")
    account: Word | None = None
    qos: Word | None = None
    constraint: Word | None = Field(None, description="node features, as in `a100&nvlink`")
    reservation: Word | None = None
    time: TimeLimit | None = Field(None, description="Slurm's time limit, as `sbatch --time` takes it")
    exclusive: bool | None = Field(None, description="take whole nodes")
    extra: tuple[Directive, ...] = Field((), description="more sbatch options, such as `--switches=1`")


class SlurmConfig(StrictModel):
    """An engine of this type under `engines:` in the server's config."""

    type: Literal["slurm"]
    shared_dir: Path = Field(description="a folder that the server and all nodes see under the same path")
    defaults: SlurmOptions = Field(SlurmOptions(), description="for specs that do not say otherwise")
    nodes: tuple[str, ...] = Field((), description="use only nodes that match one of these patterns, such as `gpu*`")
    topology_features: tuple[Word, ...] = Field(
        (),
        description="keys of node features of the form KEY=VALUE that say where a node stands, from the widest to the "
        "nearest, such as [row, rack]; default the switches that Slurm knows of (`topology/tree`)",
    )
    node_prices: dict[str, Price] = Field(
        default_factory=dict,
        description="dollars an hour of a node by a feature of it, or a pattern of its name, such as {h100: 31.2, "
        "cpu*: 0.8}; the first that fits counts, and the cheapest nodes are used first",
    )
    spot_nodes: tuple[str, ...] = Field(
        (), description="features, or patterns of names, of nodes that can be taken away, beside the feature `spot`"
    )
    python: str | None = Field(None, description="an interpreter on the nodes, 3.9 or newer; by default the server's")
    bin_dir: Path | None = Field(None, description="where sbatch, squeue, ... are, if not on PATH")
    conf: Path | None = Field(None, description="slurm.conf (SLURM_CONF), if it is in no usual place")
    container_runtime: ContainerRuntime = Field(ContainerRuntime.NONE, description="what runs a spec's `image`")
    container_python: str = Field("python3", description="the interpreter inside images")
    single_node_steps: bool | None = Field(
        None,
        description="start the supervisor of a single node by srun too: a fifth of a second slower, but warned when a "
        "preemption's GraceTime begins instead of when it ends; by default where the partition has a GraceTime",
    )
    requeue: bool = Field(False, description="let Slurm requeue jobs; Windlass then still retries by a job of its own")
    poll_interval_s: float = Field(1.0, gt=0, le=60, description="how often squeue is asked while anything is live")
    settle_s: float = Field(5.0, ge=0, le=300, description="how long the shared folder may take to show a node's files")
    rendezvous_s: float = Field(300.0, gt=0, description="how long the nodes of a gang wait for each other")
    spot_notices: Literal["aws", "gcp", "azure"] | None = Field(
        None, description="whose machines the nodes are, if they can be taken away: they are asked for its notices"
    )
    drain_is_notice: bool = Field(False, description="end attempts on draining nodes early, as before a preemption")
