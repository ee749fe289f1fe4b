"""`nodes`: which can be used, and setting one aside or giving it back by hand."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from windlass.cli import options
from windlass.cli.connection import open_client
from windlass.cli.terminal import Cell, next_steps, notice, say, say_json, table
from windlass.core.accelerators import is_tpu
from windlass.core.errors import InvalidInput
from windlass.core.quantities import format_duration, parse_duration

if TYPE_CHECKING:
    from windlass.wire.cluster import AsideView, ClusterView

app = typer.Typer(help="Nodes: list, set aside, give back.", no_args_is_help=True)

Node = Annotated[str, typer.Argument(metavar="NODE", help="Its name, as `windlass nodes ls` shows it.")]
OnEngine = Annotated[str | None, typer.Option("--engine", help="Its engine, where several have a node of that name.")]


@app.command()
def ls(ctx: typer.Context, json: options.Json = False) -> None:
    """List the nodes, and which are set aside."""
    view = open_client(ctx).cluster()
    if json:
        say_json(view.model_dump(mode="json", include={"nodes", "set_aside"}))
        return
    rows = _rows(view, time.time())
    if not rows:
        notice("no nodes have been seen yet; `windlass doctor` says whether the controller is active")
        return
    say(table(["NAME", "ENGINE", "CPU", "GPU", "STATE"], rows, flexible=4, stream=sys.stdout))
    next_steps("windlass cluster", "windlass nodes set-aside NODE")


@app.command("set-aside")
def set_aside(
    ctx: typer.Context,
    node: Node,
    engine: OnEngine = None,
    duration: Annotated[
        str | None, typer.Option("--for", help="How long, e.g. 2h. Default: until it is given back.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why, for whoever wonders.")] = "",
) -> None:
    """Place nothing on a node any more. What runs there goes on."""
    done = open_client(ctx).set_aside(node, engine=engine, for_s=_seconds(duration), reason=reason)
    say(f"{done.node}  {describe(done, time.time())}")
    next_steps(f"windlass nodes give-back {done.node}")


@app.command("give-back")
def give_back(ctx: typer.Context, node: Node, engine: OnEngine = None) -> None:
    """Use a node again that was set aside, by hand or because it failed."""
    done = open_client(ctx).give_back(node, engine=engine)
    say(f"{done.node}  can be used again; it was set aside because: {done.reason}")


def describe(aside: AsideView, now: float) -> str:
    """`set aside for 28m12s: lost: node n2 is gone`."""
    left = "until it is given back" if aside.until is None else f"for {format_duration(max(0.0, aside.until - now))}"
    return f"set aside {left}: {aside.reason}"


def _rows(view: ClusterView, now: float) -> list[list[Cell | str]]:
    """Also of nodes that are set aside and not there at the moment."""
    asides = {(aside.engine, aside.node): aside for aside in view.set_aside}
    rows: list[list[Cell | str]] = []
    for node in view.nodes:
        aside = asides.pop((node.engine, node.name), None)
        state = Cell("ok", ("green",)) if aside is None else Cell(describe(aside, now), ("yellow",))
        gpus = f"{node.gpus} TPU" if is_tpu(node.gpu_type) else str(node.gpus)
        rows.append([node.name, node.engine, f"{node.cpus:g}", gpus, state])
    gone: list[list[Cell | str]] = [
        [name, engine, "", "", Cell(f"not there; {describe(aside, now)}", ("yellow",))]
        for (engine, name), aside in sorted(asides.items())
    ]
    return [*rows, *gone]


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise InvalidInput(f"--for: {error}") from None
