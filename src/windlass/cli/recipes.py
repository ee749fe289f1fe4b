"""`recipes`: the training programs that come with Windlass."""

from __future__ import annotations

import sys

from windlass.cli import options
from windlass.cli.terminal import next_steps, paint_for, say, say_json
from windlass.core.recipes import load_recipes


def recipes(json: options.Json = False) -> None:
    """List the training programs that come with Windlass."""
    found = load_recipes()
    if json:
        say_json([{"name": name, "summary": summary} for name, summary in found.items()])
        return
    paint = paint_for(sys.stdout)
    longest = max(map(len, found), default=0)
    for name, summary in found.items():
        say(f"{paint(name.ljust(longest), 'bold')}  {summary}")
    if found:
        next_steps(f"windlass run --recipe {next(iter(found))}")
