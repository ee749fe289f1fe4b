"""`up`, `down` and `version`: the embedded server's life."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from windlass import __version__
from windlass.cli.connection import connection
from windlass.cli.terminal import next_steps, notice, paint_for, say, say_json
from windlass.core.errors import Conflict, InvalidInput

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", envvar="WINDLASS_CONFIG", help="Settings. Default: config.yaml in its folder."),
]
HomeOption = Annotated[Path | None, typer.Option("--home", help="The server's folder. Default: ~/.windlass.")]


def home_of(ctx: typer.Context, home: Path | None) -> Path:
    return home.expanduser().absolute() if home else connection(ctx).home


def up(
    ctx: typer.Context,
    daemon: Annotated[bool, typer.Option("--daemon", "-d", help="In the background.")] = False,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Default: as the last time, else 8470, else a free one.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. Default: 127.0.0.1.")] = None,
    home: HomeOption = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Ask for no token; on loopback only.")] = False,
    config: ConfigOption = None,
) -> None:
    """Start the server."""
    from windlass.client.embedded import answers, ensure_server
    from windlass.client.endpoint import LOOPBACK, running_server

    folder = home_of(ctx, home)
    if no_auth and host is not None and host not in LOOPBACK:
        raise InvalidInput(
            f"--no-auth with --host {host} would let everybody on the network run programs here",
            hint="leave --no-auth out, or listen on 127.0.0.1",
        )
    if (known := running_server(folder)) is not None and answers(known.url):
        if daemon:
            say(f"{known.url}  (running already, pid {known.pid})")
            return
        raise Conflict(
            f"a server for {folder} runs already at {known.url} (pid {known.pid})", hint="`windlass down` stops it"
        )
    if daemon:
        options = (
            *(("--config", str(config.expanduser().absolute())) if config is not None else ()),
            *(("--host", host) if host is not None else ()),
            *(("--port", str(port)) if port is not None else ()),
            *(("--no-auth",) * no_auth),
        )
        started = ensure_server(folder, options=options)
        say(f"{started.url}  (pid {started.pid})")
        next_steps("windlass run train.py", "windlass ps", "windlass down")
        return
    from windlass.server.main import serve
    from windlass.server.settings import Settings

    settings = Settings.from_environ(
        os.environ, home=folder, config=config, host=host, port=port, auth=False if no_auth else None
    )
    sys.exit(serve(settings, announce=lambda url: _announce(url, folder)))


def _announce(url: str, home: Path) -> None:
    paint = paint_for(sys.stdout)
    say(f"{paint('windlass', 'bold')} {__version__} is up")
    for label, value in (("url", url), ("api", f"{url}/docs"), ("home", str(home)), ("stop", "Ctrl-C; runs go on")):
        say(f"  {paint(label.ljust(5), 'dim')} {value}")


def down(ctx: typer.Context, home: HomeOption = None) -> None:
    """Stop the embedded server. Running runs go on, and are taken up again by the next one."""
    from windlass.client.embedded import stop_server
    from windlass.engines.local import stop_launchers

    folder = home_of(ctx, home)
    stopped = stop_server(folder)
    stop_launchers(folder)
    if stopped:
        notice(f"the server of {folder} has stopped")
    else:
        notice(f"no server is running for {folder}")


def version(json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """Show the version."""
    facts = {"windlass": __version__, "python": sys.version.split()[0], "executable": sys.executable}
    if json:
        say_json(facts)
    else:
        say(f"windlass {__version__}")
