"""`metrics`: what is known of each metric of a run, or its points."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

import typer

from windlass.cli import options
from windlass.cli.charts import number
from windlass.cli.connection import open_client
from windlass.cli.terminal import next_steps, notice, say, say_json, table
from windlass.core.errors import NotFound
from windlass.core.names import metric_place, unknown

if TYPE_CHECKING:
    from windlass.client import Metric
    from windlass.wire.runs import MetricSummary

_SYSTEM = "system/"


def metrics(
    ctx: typer.Context,
    run: options.RunRef,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these; `val/*` is all that begin so.")
    ] = None,
    points: Annotated[bool, typer.Option("--points", help="Every point: step, time and value.")] = False,
    system: Annotated[
        bool, typer.Option("--system", help="Those of its machines too; so do names `system/...`.")
    ] = False,
    json: options.Json = False,
) -> None:
    """All metrics of a run: the latest value, the least, the greatest, and how many there are."""
    client, wanted = open_client(ctx), names or ()
    found = client.metric_summaries(run, system=system or any(one.startswith(_SYSTEM) for one in wanted))
    run_id, known = found.run_id, found.metrics
    more = f"--system shows {found.left_out} of its machines" if found.left_out else None
    chosen = choose(known, wanted, hint=more)
    if points:
        logged = [client.metrics(run_id, name, most=100_000)[name] for name in chosen]
        if json:
            say_json({one.name: {"steps": one.steps, "times": one.times, "values": one.values} for one in logged})
        else:
            say("\n".join(render_points(logged)))
        return
    if json:
        say_json({name: known[name].model_dump(mode="json") for name in chosen})
    elif not chosen:
        notice("; ".join(filter(None, ("it has logged no metrics", more))))
    else:
        rows = [_row(name, known[name]) for name in chosen]
        say(table(("METRIC", "LAST", "STEP", "LEAST", "GREATEST", "POINTS"), rows, flexible=0, stream=sys.stdout))
        next_steps(f"windlass metrics {run_id} {chosen[0]} --points")


def choose(known: Iterable[str], wanted: Sequence[str], *, hint: str | None = None) -> list[str]:
    """Those that are named or match, losses first. Raises NotFound for a name that none has."""
    there = sorted(known, key=metric_place)
    for one in wanted:
        if not any(_is_meant(name, one) for name in there):
            raise NotFound(unknown("metric", one, there), hint=hint)
    return [name for name in there if not wanted or any(_is_meant(name, one) for one in wanted)]


def _is_meant(name: str, wanted: str) -> bool:
    return name == wanted or fnmatchcase(name, wanted)  # names may have brackets


def _row(name: str, one: MetricSummary) -> list[str]:
    step = "" if one.step is None else f"{one.step:,}"
    least, greatest = ("" if value is None else number(value) for value in (one.min, one.max))
    return [name, number(one.last), step, least, greatest, f"{one.count:,}" if one.count else ""]


def render_points(found: Sequence[Metric]) -> list[str]:
    """Tabs between the columns, for other programs; the name where there are several."""
    head = [*(["name"] if len(found) > 1 else []), "step", "time", "value"]
    lines = ["\t".join(head)]
    for one in found:
        for step, at, value in zip(one.steps, one.times, one.values, strict=True):
            row = ["" if step is None else str(step), f"{at:.3f}", repr(value)]
            lines.append("\t".join([one.name, *row] if len(found) > 1 else row))
    return lines
