"""`run` and `submit` as the parser knows them; `shortcut` reads the plain lines among them. `sending` does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from windlass.cli import options, sending
from windlass.cli.connection import connection


def run(
    ctx: typer.Context,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[--] COMMAND...", help="A command, or a .py script and arguments.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="A spec file.")] = None,
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", help="A training program of Windlass's own; `windlass recipes` lists them."),
    ] = None,
    plan: options.Plan = None,
    nproc: options.Nproc = None,
    nodes: options.Nodes = None,
    cpus: options.Cpus = None,
    gpus: options.Gpus = None,
    memory: options.Memory = None,
    name: options.Name = None,
    project: options.Project = None,
    param: options.Param = None,
    env: options.Env = None,
    secret: options.Secret = None,
    timeout: options.Timeout = None,
    retries: options.Retries = None,
    priority: options.Priority = None,
    tag: options.Tag = None,
    group: options.Group = None,
    experiment: options.Experiment = None,
    seed: options.Seed = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not follow it.")] = False,
    no_snapshot: Annotated[bool, typer.Option("--no-snapshot", help="Run in this folder, not in a copy.")] = False,
    no_warm: options.NoWarm = False,
) -> None:
    """Run a command or script, follow its output, and exit with its exit code."""
    given = dict(locals())
    sending.run(connection(given.pop("ctx")), given)


def submit(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="SPEC.YAML", help="The spec file.")],
    name: options.Name = None,
    project: options.Project = None,
    plan: options.Plan = None,
    param: options.Param = None,
    env: options.Env = None,
    secret: options.Secret = None,
    priority: options.Priority = None,
    tag: options.Tag = None,
    group: options.Group = None,
    experiment: options.Experiment = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow it, as `run` does.")] = False,
    json: options.Json = False,
) -> None:
    """Submit a spec file and return at once. Prints the run's id."""
    given = dict(locals())
    sending.submit(connection(given.pop("ctx")), given)
