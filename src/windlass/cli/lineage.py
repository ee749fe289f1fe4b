"""`lineage`: what came from what, as a tree."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from windlass.cli import options
from windlass.cli.connection import open_client
from windlass.cli.terminal import Paint, notice, paint_for, say, say_json

if TYPE_CHECKING:
    from windlass.wire.lineage import Lineage, Thing

_STYLES = {"dataset": "cyan", "run": "bold", "checkpoint": "dim", "model": "magenta", "version": "green"}


def lineage(
    ctx: typer.Context,
    of: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="A run, models:/NAME/VERSION, models:/NAME@ALIAS, m-…, dataset:NAME@DIGEST, checkpoint:ID.",
        ),
    ],
    json: options.Json = False,
) -> None:
    """Show what something came from and what came from it: data, runs, checkpoints, models."""
    found = open_client(ctx).lineage(of)
    if json:
        say_json(found.model_dump(mode="json"))
        return
    for line in render_tree(found, paint_for(sys.stdout)):
        say(line)
    if found.truncated:
        notice("there is more than is shown")


def render_tree(found: Lineage, paint: Paint) -> list[str]:
    """What has several sources stands below the first of them, and is only named below the others. A circle, which has
    no beginning, begins with what was asked for."""
    things = {thing.key: thing for thing in found.things}
    below: dict[str, list[tuple[str, str]]] = {}
    for link in found.links:
        below.setdefault(link.source, []).append((link.target, link.how))
    has_source = {link.target for link in found.links}
    lines: list[str] = []
    shown: set[str] = set()

    def show(key: str, how: str, before: str, branch: str, after: str) -> None:
        again = key in shown and bool(below.get(key))
        shown.add(key)
        lines.append(
            before
            + branch
            + _line(things[key], how, paint, is_root=key == found.root)
            + ("  (see above)" if again else "")
        )
        children = [] if again else below.get(key, [])
        for number, (child, by) in enumerate(children):
            last = number == len(children) - 1
            show(child, by, before + after, "└─ " if last else "├─ ", "   " if last else "│  ")

    beginnings = [key for key in things if key not in has_source]
    for key in (*beginnings, found.root, *things):
        if key not in shown:
            show(key, "", "", "", "")
    return lines


def _line(thing: Thing, how: str, paint: Paint, *, is_root: bool) -> str:
    title = paint(thing.title, _STYLES[thing.kind])
    said = thing.key.removeprefix("model:")  # m-... says what it is
    is_said = thing.kind == "dataset" or thing.key.endswith(thing.title)  # its title is what can be asked for
    key = "" if is_said else paint(f"  {said}", "dim")
    detail = f"  {thing.detail}" if thing.detail and thing.detail not in thing.key else ""
    mark = paint("  ← asked for", "yellow") if is_root else ""
    return f"{how + ' ' if how else ''}{thing.kind} {title}{key}{detail}{mark}"
