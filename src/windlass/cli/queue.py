"""`queue`: who waits, in which order, until about when and for what."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from windlass.cli import options
from windlass.cli.connection import open_client
from windlass.cli.terminal import Cell, cells, fit, next_steps, notice, say, say_json, table, width_of
from windlass.core.accelerators import title_of
from windlass.core.quantities import format_roughly, format_size

if TYPE_CHECKING:
    from windlass.wire.queue import ProjectShare, QueueEntry, QueueView

_MOST = 50
_NAME, _SHORT_NAME = 24, 16  # columns
_LEAST_REASON = 24
_STYLES = {"none": ("green",), "soon": ("green",), "limit": ("yellow",), "user_limit": ("yellow",), "absent": ("red",)}
# What a narrow terminal goes without, in this order.
_SPARED = ("SPREAD", "LONG NAMES", "USER", "WANTS", "PRIORITY", "WAITED", "PROJECT")


def queue(
    ctx: typer.Context,
    project: options.Project = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="How many at most.")] = _MOST,
    json: options.Json = False,
) -> None:
    """List the runs that wait, in the order in which they will be served, and what projects have."""
    view = open_client(ctx).queue(project=project, limit=limit)
    if json:
        say_json(view.model_dump(mode="json"))
        return
    shares = render_projects(view.projects)
    if shares:
        say(f"{shares}\n")
    if not view.entries:
        notice(_nothing(view, project))
        return
    say(render_entries(view.entries, time.time(), width_of(sys.stdout)))
    more = view.total - len(view.entries)
    if more > 0 and project is None:
        notice(f"{more:,} more; -n {view.total} shows them")
    next_steps(f"windlass why {view.entries[0].run_id}", "windlass cluster")


def _nothing(view: QueueView, project: str | None) -> str:
    if project is None or not view.total:
        return "nothing waits"
    return f"nothing waits in project {project}; {view.total:,} in others"


def render_projects(shares: Sequence[ProjectShare]) -> str:
    """Where there is but one and nothing is promised to it, there is nothing to compare."""
    if len(shares) < 2 and not any(share.quota or share.limit for share in shares):
        return ""
    titles = ["PROJECT", "RUN", "WAIT", "HOLD", "QUOTA", "LIMIT", "WEIGHT", "SHARE", "LATELY", "DUE"]
    depth: dict[str, int] = {}
    rows = []
    for share in shares:
        depth[share.name] = depth.get(share.parent or "", -1) + 1
        rows.append(_share_row(share, depth[share.name]))
    said = {"QUOTA": any(share.quota for share in shares), "LIMIT": any(share.limit for share in shares)}
    said["WEIGHT"] = len({share.weight for share in shares}) > 1
    shown = [at for at, title in enumerate(titles) if said.get(title, True)]
    return table(
        [titles[at] for at in shown], [[row[at] for at in shown] for row in rows], flexible=0, stream=sys.stdout
    )


def _share_row(share: ProjectShare, depth: int) -> list[Cell | str]:
    is_over = share.share > share.due + 0.005
    return [
        Cell("  " * depth + share.name, ("bold",)),
        str(share.running or "-"),
        str(share.waiting or "-"),
        _holds(share),
        _amounts(share.quota),
        _amounts(share.limit),
        f"{share.weight:g}",
        Cell(f"{share.share:.0%}", ("yellow",) if is_over else ("green",) if share.share else ()),
        f"{share.lately:.0%}",
        f"{share.due:.0%}" if share.due else "-",
    ]


def _holds(share: ProjectShare) -> str:
    """Accelerators, if it has any."""
    said = [f"{share.gpus:g} GPU"] if share.gpus else []
    said += [f"{share.tpus:g} TPU"] if share.tpus else []
    return ", ".join(said) or (f"{share.cpus:g} CPU" if share.cpus else "-")


def _amounts(amounts: Mapping[str, float]) -> str:
    """`16 GPU, 8 h100, 4 TPU v5e`."""
    said = []
    for resource, amount in sorted(amounts.items()):
        word = resource.upper() if resource in ("gpu", "tpu", "cpu") else title_of(resource.removeprefix("gpu:"))
        word = "run" if resource == "runs" and amount == 1 else word
        said.append(f"{format_size(amount)} {word}" if resource == "memory" else f"{amount:g} {word}")
    return ", ".join(said)


def render_entries(entries: Sequence[QueueEntry], now: float, width: int) -> str:
    """All columns that tell runs apart, as far as there is room beside the reason."""
    without = {
        title
        for title, values in (
            ("PROJECT", {entry.project for entry in entries}),
            ("USER", {entry.user for entry in entries}),
            ("PRIORITY", {entry.priority for entry in entries}),
        )
        if len(values) == 1
    }
    if all(entry.start is None for entry in entries):
        without.add("STARTS IN")
    for spared in ("", *_SPARED):
        without.add(spared)
        name = _SHORT_NAME if "LONG NAMES" in without else _NAME
        rows = [_cells(entry, now, name, spread="SPREAD" not in without) for entry in entries]
        titles = [title for title in rows[0] if title not in without]
        taken = sum(max(cells(title), *(cells(row[title].text) for row in rows)) + 2 for title in titles[:-1])
        if taken + _LEAST_REASON <= width:
            break
    shown = [[row[title] for title in titles] for row in rows]
    return table(titles, shown, flexible=len(titles) - 1, stream=sys.stdout)


def _cells(entry: QueueEntry, now: float, name: int, *, spread: bool) -> dict[str, Cell]:
    from windlass.cli.estimate import start_in_short

    return {
        "#": Cell(str(entry.position or "-")),
        "RUN": Cell(entry.run_id, ("bold",)),
        "NAME": Cell(fit(entry.name, name)),
        "PROJECT": Cell(entry.project),
        "USER": Cell(entry.user or ""),
        "PRIORITY": Cell(entry.priority),
        "WANTS": Cell(entry.wants),
        "WAITED": Cell(format_roughly(max(0.0, now - entry.queued_at))),
        "STARTS IN": Cell(start_in_short(entry.start, now, spread=spread)),
        "REASON": Cell(entry.reason, _STYLES.get(entry.obstacle, ("dim",))),
    }
