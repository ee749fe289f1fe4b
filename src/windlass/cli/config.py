"""`server init` and `server config`: writing the config file, and showing what a server would use."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from windlass.cli import options
from windlass.cli.server import ConfigOption, HomeOption, home_of
from windlass.cli.terminal import Cell, next_steps, notice, say, say_json, table
from windlass.core.errors import Conflict, InvalidInput

app = typer.Typer(help="Settings of a server: write a config file, show what is used.", no_args_is_help=True)
_PASSWORD = re.compile(r"(?<=://)([^:/@\s]*):[^@/\s]+@")
_SECRET_KEY = re.compile(r"password|token$|secret$|credential", re.IGNORECASE)


@app.command()
def init(
    ctx: typer.Context,
    path: Annotated[Path | None, typer.Argument(help="Default: config.yaml in its folder; - prints it.")] = None,
    home: HomeOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a config file with every setting, its default and what it is for."""
    from windlass.server.catalogue import render_file
    from windlass.server.config import FILE_NAME

    if path == Path("-"):
        say(render_file().rstrip("\n"))
        return
    target = path.expanduser() if path else home_of(ctx, home) / FILE_NAME
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # It may come to hold the database's password.
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if force else os.O_EXCL), 0o600)
    except FileExistsError as error:
        raise Conflict(f"{target} is there already", hint="--force replaces it; `server init -` prints it") from error
    except OSError as error:
        raise InvalidInput(f"{target} cannot be written: {error.strerror}") from error
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(render_file())
    notice(f"wrote {target}")
    next_steps(f"$EDITOR {target}", "windlass server config", "windlass up --daemon")


@app.command()
def config(
    ctx: typer.Context,
    file: ConfigOption = None,
    home: HomeOption = None,
    json: options.Json = False,
) -> None:
    """Show the settings a server would use, and where each comes from."""
    from windlass.server.catalogue import settings
    from windlass.server.config import Origin, load_config
    from windlass.server.settings import Settings

    folder = home_of(ctx, home)
    loaded = load_config(os.environ, home=folder, file=file)
    Settings.of(loaded, home=folder)  # rules that go over several settings
    values = loaded.config.model_dump(mode="json")
    default = Origin(kind="default", text="default")
    rows = []
    for setting in settings():
        value: Any = values
        for part in setting.path:
            value = value[part]
        inner = [found for path, found in loaded.origins.items() if path[: len(setting.path)] == setting.path]
        origin = loaded.origins.get(setting.path) or next(iter(inner), default)
        rows.append({"setting": setting.name, "value": hidden(value), "from": origin.text, "kind": origin.kind})
    if json:
        say_json({"file": str(loaded.path) if loaded.path else None, "home": str(folder), "settings": rows})
        return
    say(f"home: {folder}\nfile: {loaded.path or 'none'}")
    cells = [
        [
            row["setting"],
            _shown(row["value"]),
            Cell(str(row["from"]), ("dim",) if row["kind"] == "default" else ("cyan",)),
        ]
        for row in rows
    ]
    say(table(["SETTING", "VALUE", "FROM"], cells, flexible=1, stream=sys.stdout))


def hidden(value: Any, key: str = "") -> Any:
    """`value` without its secrets: passwords in urls, and whatever a key calls one."""
    if isinstance(value, dict):
        return {name: hidden(item, str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [hidden(item, key) for item in value]
    if isinstance(value, str):
        return "***" if _SECRET_KEY.search(key) else _PASSWORD.sub(r"\1:***@", value)
    return value


def _shown(value: Any) -> str:
    import json

    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
