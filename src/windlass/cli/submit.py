"""`run` and `submit`: from a command line or a spec file to a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windlass.cli import options
from windlass.cli.connection import open_or_start
from windlass.cli.terminal import next_steps, paint_for, say, say_json
from windlass.core.errors import InvalidInput

if TYPE_CHECKING:
    from windlass.client import Run


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
    seed: options.Seed = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not follow it.")] = False,
    no_snapshot: Annotated[bool, typer.Option("--no-snapshot", help="Run in this folder, not in a copy.")] = False,
    no_warm: options.NoWarm = False,
) -> None:
    """Run a command or script, follow its output, and exit with its exit code."""
    if not command and file is None and recipe is None:
        raise InvalidInput(
            "nothing to run", hint="`windlass run train.py`, `windlass run -- python train.py`, --recipe or --file"
        )
    keys: dict[str, Any] = {
        **(_command_keys(command or []) if recipe is None else {"recipe": recipe, "args": command or None}),
        "plan": plan,
        "nproc": nproc,
        "resources": options.resources(nodes, cpus, gpus, memory),
        "name": name,
        "project": project,
        "params": options.pairs("--param", param, typed=True),
        "env": options.pairs("--env", env),
        "timeout": timeout,
        "retry": None if retries is None else {"max": retries},
        "priority": priority,
        "tags": options.tags(tag),
        "seed": seed,
        "warm": False if no_warm else None,
        "workdir": str(Path.cwd()) if no_snapshot else None,
    }
    from windlass.client.submission import assemble

    submission = assemble(file, keys, options.secrets(secret))
    submitted = open_or_start(ctx).send(submission)
    if detach:
        _detached(submitted)
    else:
        from windlass.cli.follow import follow_to_end

        sys.exit(follow_to_end(submitted))


def _command_keys(command: Sequence[str]) -> dict[str, Any]:
    if not command:
        return {}
    if command[0].endswith(".py"):
        return {"script": command[0], "args": list(command[1:])}
    return {"command": list(command)}


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
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow it, as `run` does.")] = False,
    json: options.Json = False,
) -> None:
    """Submit a spec file and return at once. Prints the run's id."""
    from windlass.client.submission import assemble

    keys = {
        "name": name,
        "project": project,
        "plan": plan,
        "params": options.pairs("--param", param, typed=True),
        "env": options.pairs("--env", env),
        "priority": priority,
        "tags": options.tags(tag),
    }
    submission = assemble(file, keys, options.secrets(secret))
    submitted = open_or_start(ctx).send(submission)
    if json:
        say_json(submitted.view.model_dump(mode="json"))
    elif follow:
        from windlass.cli.follow import follow_to_end

        sys.exit(follow_to_end(submitted))
    else:
        _detached(submitted)


def _detached(submitted: Run) -> None:
    """In a pipe the id alone, for scripts; on a terminal with words."""
    if not sys.stdout.isatty():
        say(submitted.id)
        return
    paint = paint_for(sys.stdout)
    say(f"{paint(submitted.id, 'bold')}  {submitted.name}  {paint.state(submitted.state)}")
    next_steps(f"windlass logs -f {submitted.id}", f"windlass watch {submitted.id}", f"windlass cancel {submitted.id}")
