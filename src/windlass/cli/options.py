"""Options that several commands share, and how they become keys of a spec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from windlass.core.errors import InvalidInput

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
Timeout = Annotated[str | None, typer.Option("--timeout", help="Time limit, e.g. 90s, 10m, 12h.")]
Retries = Annotated[int | None, typer.Option("--retries", min=0, help="Try again after any failure, so often.")]
Priority = Annotated[str | None, typer.Option("--priority", help="low, normal or high.")]
Plan = Annotated[
    str | None, typer.Option("--plan", help="How the model is spread, e.g. data=2,tensor=4,precision=bf16; or auto.")
]
Nproc = Annotated[int | None, typer.Option("--nproc", min=1, help="Processes per node.")]
Nodes = Annotated[int | None, typer.Option("--nodes", min=1, help="Nodes.")]
Cpus = Annotated[float | None, typer.Option("--cpus", min=0, help="CPU cores per node.")]
Gpus = Annotated[int | None, typer.Option("--gpus", min=0, help="GPUs per node.")]
Memory = Annotated[str | None, typer.Option("--memory", help="Memory per node, e.g. 16GB.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="The run's seed.")]
NoWarm = Annotated[bool, typer.Option("--no-warm", help="Start a fresh interpreter.")]


def pairs(option: str, texts: Sequence[str] | None, *, typed: bool = False) -> dict[str, Any] | None:
    """`K=V` texts as a mapping. `typed`: values are read as in a spec file, so that `lr=3e-4` is a number."""
    if not texts:
        return None
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidInput(f"{option} {text!r}: write it as NAME=VALUE")
        if typed:
            from windlass.client.specfile import parse_value

            found[name] = parse_value(value)
        else:
            found[name] = value
    return found


def tags(texts: Sequence[str] | None) -> dict[str, str] | None:
    return {name: value for name, _, value in (text.partition("=") for text in texts)} if texts else None


def secrets(texts: Sequence[str] | None) -> dict[str, str] | None:
    """Values by name: given after `=`, else from the environment, where a missing one is an error."""
    import os

    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals and name not in os.environ:
            raise InvalidInput(
                f"--secret {name}: there is no variable {name} in the environment",
                hint=f"give its value with `--secret {name}=VALUE`, or set it",
            )
        found[name] = value if equals else os.environ[name]
    return found or None


def resources(
    nodes: int | None, cpus: float | None, gpus: int | None, memory: str | None
) -> dict[str, int | float | str] | None:
    given = {"nodes": nodes, "cpus": cpus, "gpus": gpus, "memory": memory}
    return {name: value for name, value in given.items() if value is not None} or None
