"""Which server a command talks to: the options before the command, else the environment, else the embedded one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import typer

    from windlass.client import Client


class Connection(NamedTuple):
    url: str | None
    home: Path


def connection(ctx: typer.Context) -> Connection:
    found = ctx.find_object(Connection)
    assert found is not None  # set by the callback before any command
    return found


def open_client(ctx: typer.Context) -> Client:
    return _client(connection(ctx))


def has_server(where: Connection) -> bool:
    """Whether one is named or runs, so that none has to be started."""
    from windlass.client.endpoint import running_server

    return _is_named(where) or running_server(where.home) is not None


def open_or_start(where: Connection) -> Client:
    """As `open_client`, but starts the embedded server if no server is named and none runs."""
    if not _is_named(where):
        from windlass.cli.terminal import notice
        from windlass.client.embedded import ensure_server

        ensure_server(
            where.home,
            before_start=lambda: notice(f"starting the embedded server of {where.home} (`windlass down` stops it)"),
        )
    return _client(where)


def _is_named(where: Connection) -> bool:
    return bool(where.url or os.environ.get("WINDLASS_URL"))


def _client(where: Connection) -> Client:
    from windlass.client.client import Client

    return Client(url=where.url, home=where.home, start=False)
