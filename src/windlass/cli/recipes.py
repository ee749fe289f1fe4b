"""`recipes`: the training programs that come with Windlass."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windlass.cli import options
from windlass.cli.terminal import next_steps, paint_for, say, say_json
from windlass.core.recipes import check_recipe, load_recipe, load_recipes

if TYPE_CHECKING:
    from windlass.core.recipes import Recipe


def recipes(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show what this one does and takes.")] = None,
    json: options.Json = False,
) -> None:
    """List the training programs that come with Windlass, or show one of them: what it does, its params, its file."""
    if name is not None:
        recipe = load_recipe(check_recipe(name))
        say_json(as_json(recipe)) if json else _show(recipe)
        return
    found = load_recipes()
    if json:
        say_json([{"name": recipe.name, "summary": recipe.summary} for recipe in found.values()])
        return
    paint = paint_for(sys.stdout)
    longest = max(map(len, found), default=0)
    for recipe in found.values():
        say(f"{paint(recipe.name.ljust(longest), 'bold')}  {recipe.summary}")
    if found:
        first = next(iter(found))
        next_steps(f"windlass recipes {first}", f"windlass run --recipe {first}")


def as_json(recipe: Recipe) -> dict[str, Any]:
    return {
        "name": recipe.name,
        "summary": recipe.summary,
        "about": recipe.about,
        "file": str(recipe.path),
        "params": [
            {
                "name": name,
                "type": field.rule,
                "required": field.is_required,
                "default": None if field.is_required else field.default,
                "about": about,
            }
            for name, (field, about) in recipe.params.items()
        ],
        "examples": recipe.examples,
    }


def _show(recipe: Recipe) -> None:
    paint = paint_for(sys.stdout)
    say(recipe.about)
    say("")
    rows = [("param", "default", "must be; what it is")]
    for name, (field, about) in recipe.params.items():
        default = "must be given" if field.is_required else _shown(field.default)
        rows.append((name, default, f"{field.rule}; {about}" if about else field.rule))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for number, (name, default, about) in enumerate(rows):
        style = ("dim",) if number == 0 else ("bold",)
        say(f"{paint(name.ljust(widths[0]), *style)}  {default.ljust(widths[1])}  {about}")
    say("")
    say(f"{paint('file', 'dim')}     {recipe.path}")
    if recipe.examples:
        say(f"{paint('example', 'dim')}  {recipe.examples[0]}")


def _shown(default: Any) -> str:
    """As it would be given by `-p NAME=VALUE`."""
    if default is None:
        return "null"
    if isinstance(default, tuple):
        return ",".join(default)
    return str(default).lower() if isinstance(default, bool) else str(default)
