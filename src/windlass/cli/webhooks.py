"""`webhooks`: who is told of what happens to runs and models."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windlass.cli import options
from windlass.cli.connection import open_client
from windlass.cli.terminal import Cell, next_steps, notice, say, say_json, table
from windlass.core.errors import InvalidInput
from windlass.core.quantities import format_duration

if TYPE_CHECKING:
    from windlass.wire.webhooks import DeliveryView

app = typer.Typer(help="Webhooks: list, add, remove, try out, look what was sent.", no_args_is_help=True)

Hook = Annotated[str, typer.Argument(metavar="WEBHOOK", help="Its name or id.")]
_STYLES = {"delivered": ("green",), "failed": ("red",), "waiting": ("yellow",)}


@app.command()
def ls(ctx: typer.Context, json: options.Json = False) -> None:
    """List webhooks and what they hear of."""
    found = list(open_client(ctx).webhooks.list())
    if json:
        say_json([hook.model_dump(mode="json") for hook in found])
        return
    if not found:
        notice("there are no webhooks yet")
        next_steps("windlass webhooks add oncall https://chat.example.com/hooks/1 --on run.failed --on run.alert")
        return
    rows: list[list[Cell | str]] = [
        [Cell(hook.name, ("bold",)), hook.status.lower(), hook.url, ", ".join(hook.events), hook.id] for hook in found
    ]
    say(table(["NAME", "STATUS", "URL", "EVENTS", "ID"], rows, flexible=3, stream=sys.stdout))


@app.command()
def add(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, dots, underscores, hyphens.")],
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to send.")],
    on: Annotated[list[str], typer.Option("--on", metavar="EVENT", help="Such as run.failed, run.alert; repeatable.")],
    secret_file: Annotated[
        str | None,
        typer.Option("--secret-file", metavar="FILE", help="What signs the messages; - reads it from stdin."),
    ] = None,
    description: Annotated[str | None, typer.Option("--description", help="What it is for.")] = None,
    json: options.Json = False,
) -> None:
    """Have a URL told of events, by a signed POST."""
    events = [event.strip() for some in on for event in some.split(",") if event.strip()]
    hook = open_client(ctx).webhooks.add(name, url, events, secret=_secret(secret_file), description=description)
    if json:
        say_json(hook.model_dump(mode="json"))
        return
    say(f"{hook.name}  {hook.id}")
    next_steps(f"windlass webhooks test {hook.name}", f"windlass webhooks deliveries {hook.name}")


@app.command()
def rm(ctx: typer.Context, webhook: Hook) -> None:
    """Remove a webhook, with what is on its way to it."""
    gone = open_client(ctx).webhooks.remove(webhook)
    notice(f"{gone.name} hears nothing any more")


@app.command("test")
def try_out(
    ctx: typer.Context,
    webhook: Hook,
    event: Annotated[str | None, typer.Option("--event", help="An example of which; default: its first.")] = None,
    json: options.Json = False,
) -> None:
    """Send an example now, and show what came of it. Exits with 1 unless the receiver took it."""
    reply = open_client(ctx).webhooks.test(webhook, event)
    if json:
        say_json(reply.model_dump(mode="json"))
    elif reply.success:
        say(f"delivered: the receiver answered {reply.response_status}")
    else:
        why = reply.error or f"the receiver answered {reply.response_status}"
        notice(f"not delivered: {why}")
        if reply.response_body.strip():
            notice(reply.response_body.strip()[:500])
    if not reply.success:
        raise typer.Exit(1)


@app.command()
def deliveries(
    ctx: typer.Context,
    webhook: Hook,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000, help="How many at most.")] = 20,
    json: options.Json = False,
) -> None:
    """Show what was sent in the last week, and what came of it."""
    found = open_client(ctx).webhooks.deliveries(webhook, limit=limit)
    if json:
        say_json([one.model_dump(mode="json") for one in found])
        return
    if not found:
        notice("it was told of nothing in the last week")
        return
    now = time.time()
    headers = ["AGE", "EVENT", "STATE", "TRIES", "ANSWER", "DETAIL"]
    say(table(headers, [_row(one, now) for one in found], flexible=5, stream=sys.stdout))


def _row(one: DeliveryView, now: float) -> list[Cell | str]:
    detail = one.detail or ""
    if one.due_at is not None and one.attempts:
        detail = f"again in {format_duration(max(0.0, one.due_at - now))}: {detail}"
    return [
        format_duration(max(0.0, now - one.created_at)),
        one.event,
        Cell(one.state, _STYLES.get(one.state, ())),
        str(one.attempts),
        str(one.response_status or "-"),
        detail,
    ]


def _secret(source: str | None) -> str | None:
    """Not from the command line, where every process of the machine can read it."""
    if source is None:
        return None
    try:
        text = sys.stdin.read() if source == "-" else Path(source).expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the secret cannot be read from {source}: {error}") from error
    if not text.strip():
        raise InvalidInput(f"there is no secret in {'what stdin gave' if source == '-' else source}")
    return text.strip()
