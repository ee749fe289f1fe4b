"""Options that several commands share, as the parser wants them; `keys` makes keys of a spec of them."""

from __future__ import annotations

from typing import Annotated

import typer

RunRef = Annotated[str, typer.Argument(metavar="RUN", help="An id, the beginning of one, or a name.")]
Json = Annotated[bool, typer.Option("--json", help="Plain JSON on stdout.")]
Name = Annotated[str | None, typer.Option("--name", "-n", help="A name for the run.")]
Project = Annotated[str | None, typer.Option("--project", help="The project it belongs to.")]
Param = Annotated[list[str] | None, typer.Option("--param", "-p", metavar="K=V", help="A param; repeatable.")]
Env = Annotated[list[str] | None, typer.Option("--env", "-e", metavar="K=V", help="An environment variable.")]
Secret = Annotated[
    list[str] | None,
    typer.Option("--secret", metavar="NAME[=VALUE]", help="A secret variable; its value may be in the environment."),
]
Tag = Annotated[list[str] | None, typer.Option("--tag", metavar="K[=V]", help="A tag; repeatable.")]
Group = Annotated[str | None, typer.Option("--group", metavar="NAME", help="The group of runs it belongs to.")]
Experiment = Annotated[
    str | None,
    typer.Option("--experiment", metavar="NAME", help="Its experiment, as MLflow sees it; default the project's."),
]
Timeout = Annotated[str | None, typer.Option("--timeout", help="Time limit, e.g. 90s, 10m, 12h.")]
Retries = Annotated[int | None, typer.Option("--retries", min=0, help="Try again after any failure, so often.")]
Priority = Annotated[str | None, typer.Option("--priority", help="low, normal or high.")]
Plan = Annotated[
    str | None, typer.Option("--plan", help="How the model is spread, e.g. data=2,tensor=4,precision=bf16; or auto.")
]
Nproc = Annotated[int | None, typer.Option("--nproc", min=1, help="Processes per node.")]
Nodes = Annotated[int | None, typer.Option("--nodes", min=1, help="Nodes.")]
Cpus = Annotated[float | None, typer.Option("--cpus", min=0, help="CPU cores per node.")]
Gpus = Annotated[str | None, typer.Option("--gpus", metavar="N", help="GPUs per node: 4, 4..8, or a part such as 0.5.")]
Memory = Annotated[str | None, typer.Option("--memory", help="Memory per node, e.g. 16GB.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="The run's seed.")]
NoWarm = Annotated[bool, typer.Option("--no-warm", help="Start a fresh interpreter.")]
