"""Which server a command talks to: the options before the command, else the environment, else the embedded one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from windlass.client import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    url: str | None
    home: Path


def connection(ctx: typer.Context) -> Connection:
    found = ctx.find_object(Connection)
    assert found is not None  # set by the callback before any command
    return found


def open_client(ctx: typer.Context) -> Client:
    from windlass.client import Client

    where = connection(ctx)
    return Client(url=where.url, home=where.home, start=False)


def open_or_start(ctx: typer.Context) -> Client:
    """As `open_client`, but starts the embedded server if no server is named and none runs."""
    from windlass.cli.terminal import notice
    from windlass.client.embedded import ensure_server

    where = connection(ctx)
    if not (where.url or os.environ.get("WINDLASS_URL")):
        ensure_server(
            where.home,
            before_start=lambda: notice(f"starting the embedded server of {where.home} (`windlass down` stops it)"),
        )
    return open_client(ctx)
