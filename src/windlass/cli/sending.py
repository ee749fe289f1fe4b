"""What `run` and `submit` do once their options are known. Loads neither the parser nor the models of the wire: every
run waits for this, and the server checks what it is sent."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from windlass.cli import keys
from windlass.cli.connection import Connection, has_server, open_or_start
from windlass.cli.shortcut import misplaced
from windlass.cli.terminal import next_steps, paint_for, say, say_json
from windlass.client.answers import read
from windlass.core.errors import InvalidInput, WindlassError

if TYPE_CHECKING:
    from windlass.client import Client

Given = Mapping[str, Any]  # values by the names that the commands' parameters have; None counts as not given


def run(where: Connection, given: Given) -> None:
    command, file, recipe = given.get("command") or [], given.get("file"), given.get("recipe")
    if not command and file is None and recipe is None:
        raise InvalidInput(
            "nothing to run", hint="`windlass run train.py`, `windlass run -- python train.py`, --recipe or --file"
        )
    _warn_of_misplaced(command)
    retries = given.get("retries")
    wanted = {
        **(_command_keys(command) if recipe is None else {"recipe": recipe, "args": command or None}),
        **_common_keys(given),
        "nproc": given.get("nproc"),
        "resources": keys.resources(*(given.get(name) for name in ("nodes", "cpus", "gpus", "memory"))),
        "timeout": given.get("timeout"),
        "retry": None if retries is None else {"max": retries},
        "seed": given.get("seed"),
        "warm": False if given.get("no_warm") else None,
        "workdir": str(Path.cwd()) if given.get("no_snapshot") else None,
    }
    client, made = _send(where, file, wanted, keys.secrets(given.get("secret")))
    if given.get("detach"):
        _tell(made)
    else:
        _follow(client, made)


def _warn_of_misplaced(command: Sequence[str]) -> None:
    """A script that takes any words, or none, would run on one process as if it were all that was asked for."""
    if found := list(dict.fromkeys(misplaced(command))):
        words, goes = " ".join(found), "goes" if len(found) == 1 else "go"
        warning = paint_for(sys.stderr)("warning:", "yellow")
        told = f"{words} {goes} to the script, as all words after it do; options of `windlass run` stand before it"
        print(f"{warning} {told}", file=sys.stderr, flush=True)


def submit(where: Connection, given: Given) -> None:
    client, made = _send(where, given["file"], _common_keys(given), keys.secrets(given.get("secret")))
    if given.get("json"):
        say_json(made)
    elif given.get("follow"):
        _follow(client, made)
    else:
        _tell(made)


def _common_keys(given: Given) -> dict[str, Any]:
    return {
        "name": given.get("name"),
        "project": given.get("project"),
        "plan": given.get("plan"),
        "params": keys.pairs("--param", given.get("param"), typed=True),
        "env": keys.pairs("--env", given.get("env")),
        "priority": given.get("priority"),
        "tags": keys.tags(given.get("tag")),
        "group": given.get("group"),
        "experiment": given.get("experiment"),
    }


def _command_keys(command: Sequence[str]) -> dict[str, Any]:
    if not command:
        return {}
    if command[0].endswith(".py"):
        return {"script": command[0], "args": list(command[1:])}
    return {"command": list(command)}


def _send(
    where: Connection, file: Path | None, wanted: Mapping[str, Any], secrets: Mapping[str, str] | None
) -> tuple[Client, Mapping[str, Any]]:
    """The new run, as the server shows it. A server that is there checks the spec, sooner than its models are loaded
    here; what it refuses is looked at here too, where problems have lines of a file."""
    from windlass.client.submission import assemble

    if not has_server(where):
        assemble(file, wanted, secrets)  # nothing is started for a spec that is wrong
    client = open_or_start(where)
    try:
        return client, client.post(assemble(file, wanted, secrets, check=False))
    except WindlassError:
        assemble(file, wanted, secrets)
        raise


def _follow(client: Client, made: Mapping[str, Any]) -> NoReturn:
    from windlass.cli.follow import follow_to_end
    from windlass.client.run import Run
    from windlass.wire.runs import RunView

    sys.exit(follow_to_end(Run(client, read(RunView, made))))


def _tell(made: Mapping[str, Any]) -> None:
    """In a pipe the id alone, for scripts; on a terminal with words."""
    run_id = made["id"]
    if not sys.stdout.isatty():
        say(run_id)
        return
    paint = paint_for(sys.stdout)
    say(f"{paint(run_id, 'bold')}  {made['name']}  {paint.state(made['state'])}")
    next_steps(f"windlass logs -f {run_id}", f"windlass watch {run_id}", f"windlass cancel {run_id}")
