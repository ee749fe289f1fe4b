"""The cluster as a picture: a line per node and a block per GPU, or per few CPUs where there are none, lettered by run.
Many nodes are a character each. Pure: a view comes in, lines go out.
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from windlass.cli.nodes import describe
from windlass.cli.terminal import Paint, cells, fit
from windlass.core.accelerators import is_tpu, title_of
from windlass.core.quantities import format_duration, format_size

if TYPE_CHECKING:
    from windlass.wire.cluster import AsideView, ClusterView, EngineView, NodeRun, NodeView

MOST_NODES = 40  # that have a line of their own
MOST_BLOCKS = 32  # on a line; CPUs: half as many
MOST_NAMED = 24  # columns of a node's name
MOST_LISTED = 12  # runs below the picture of many nodes
MOST_CLOSED = 5  # nodes that are set aside, there
_LETTERS = string.ascii_uppercase + string.digits
_COLOURS = (
    "cyan",
    "green",
    "magenta",
    "yellow",
    "blue",
    "bright_cyan",
    "bright_magenta",
    "bright_green",
    "bright_blue",
)
_LEVELS = "▁▂▃▄▅▆▇█"
_FREE, _CLOSED, _OTHER, _SHARED = "·", "×", "#", "+"

Text = tuple[str, tuple[str, ...]]  # and its styles


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What one run has on all nodes."""

    run: NodeRun
    nodes: int
    gpus: float
    cpus: float
    word: str = "GPU"  # what it calls them
    has_blocks: bool  # one without GPUs has none on nodes with GPUs


def render_cluster(view: ClusterView, *, width: int, paint: Paint, now: float, everything: bool = False) -> list[str]:
    asides = {(aside.engine, aside.node): aside for aside in view.set_aside}
    runs = held_by(view.nodes)
    is_large = len(view.nodes) > MOST_NODES and not everything
    marks = None if is_large else mark_runs(runs)
    lines: list[str] = []
    for engine, group in groupby(sorted(view.nodes, key=_place), key=lambda node: node.engine):
        nodes = list(group)
        state = next((each for each in view.engines if each.name == engine), None)
        lines += ["", *_engine_lines(engine, nodes, state, width, paint, now)]
        if marks is None:
            lines += _map(nodes, asides, width, paint, now)
        else:
            lines += _rows(nodes, asides, marks, width, paint, now)
    silent = [each for each in view.engines if not each.nodes and each.unreachable_since is not None]
    for each in silent:
        lines += ["", *_engine_lines(each.name, [], each, width, paint, now)]
    if runs:
        lines += ["", *_legend(runs, marks, width, paint)]
    return lines[1:]


def held_by(nodes: Iterable[NodeView]) -> list[Held]:
    """Of each run, the largest first."""
    shares: dict[str, list[NodeRun]] = {}
    drawn: set[str] = set()
    on_tpus: set[str] = set()
    for node in nodes:
        for run in node.runs:
            shares.setdefault(run.id, []).append(run)
            if run.gpus or not node.gpus:
                drawn.add(run.id)
            if run.gpus and is_tpu(node.gpu_type):
                on_tpus.add(run.id)
    found = [
        Held(
            run=runs[0],
            nodes=len(runs),
            gpus=sum(len(run.gpus) * run.gpu_part for run in runs),
            cpus=sum(run.cpus for run in runs),
            has_blocks=run_id in drawn,
            word="TPU" if run_id in on_tpus else "GPU",
        )
        for run_id, runs in shares.items()
    ]
    return sorted(found, key=lambda held: (-held.gpus, -held.cpus, held.run.id))


def mark_runs(runs: Sequence[Held]) -> dict[str, Text]:
    """A letter and a colour for each; the smallest, where there are too many, have one for all of them."""
    marks: dict[str, Text] = {}
    for at, held in enumerate(held for held in runs if held.has_blocks):
        letter = _LETTERS[at] if at < len(_LETTERS) else _OTHER
        marks[held.run.id] = (letter, ("inverse", _COLOURS[at % len(_COLOURS)]))
    return marks


def _place(node: NodeView) -> tuple[str, list[str], str]:
    return node.engine, node.topology, node.name


# ---- a line per engine -------------------------------------------------------------------------------------------


def _engine_lines(
    name: str, nodes: Sequence[NodeView], state: EngineView | None, width: int, paint: Paint, now: float
) -> list[str]:
    parts = [f"{len(nodes):,} {'node' if len(nodes) == 1 else 'nodes'}"]
    for kind, alike in groupby(sorted(nodes, key=_gpu_type), key=_gpu_type):
        some = list(alike)
        if whole := sum(node.gpus for node in some):
            parts.append(f"{sum(node.gpus_used for node in some):,} of {whole:,} {title_of(kind or None)}")
    parts.append(f"{sum(node.cpus_used for node in nodes):,.4g} of {sum(node.cpus for node in nodes):,.5g} CPU")
    lines = [f"{paint(name, 'bold')}  {paint(fit(', '.join(parts) + ' in use', width - cells(name) - 2), 'dim')}"]
    if state is not None and state.unreachable_since is not None:
        away = f"cannot be reached since {format_duration(now - state.unreachable_since)}: {state.message}"
        lines = [f"{paint(name, 'bold')}"] if not nodes else lines
        lines.append(f"  {paint(away, 'red')}")
    return lines


def _gpu_type(node: NodeView) -> str:
    return node.gpu_type or ""


# ---- a line per node ---------------------------------------------------------------------------------------------


def _rows(
    nodes: Sequence[NodeView],
    asides: Mapping[tuple[str, str], AsideView],
    marks: Mapping[str, Text],
    width: int,
    paint: Paint,
    now: float,
) -> list[str]:
    name_width = min(MOST_NAMED, max(cells(node.name) for node in nodes))
    pictures = {node.name: blocks(node, marks, is_closed=(node.engine, node.name) in asides) for node in nodes}
    picture_width = max(len(picture) for picture in pictures.values())
    columns = [_numbers(node) for node in nodes]
    widths = [max(cells(column[at]) for column in columns) for at in range(3)]
    lines: list[str] = []
    where: list[str] = []
    for node, numbers in zip(nodes, columns, strict=True):
        if node.topology != where:
            where = node.topology
            lines.append("  " + paint(fit(" / ".join(where) or "elsewhere", width - 2), "dim"))
        picture = pictures[node.name]
        drawn = "".join(paint(text, *styles) for text, styles in _joined(picture))
        drawn += " " * (picture_width - len(picture))
        said = "  ".join(number.rjust(wide) for number, wide in zip(numbers, widths, strict=True) if wide)
        said += "  spot" if node.spot else ""
        line = f"  {fit(node.name, name_width).ljust(name_width)}  {drawn}  {paint(said, 'dim')}"
        lines.append(line.rstrip())
        aside = asides.get((node.engine, node.name))
        if aside is not None:
            indent = " " * (name_width + 4)
            lines.append(indent + paint(fit(describe(aside, now), width - len(indent)), "yellow"))
    return lines


def _numbers(node: NodeView) -> list[str]:
    kind = title_of(node.gpu_type)
    return [
        f"{node.gpus_used}/{node.gpus} {kind}" if node.gpus else "",
        f"{node.cpus_used:.3g}/{node.cpus:.4g} CPU",
        _of(node.memory_used_bytes, node.memory_bytes),
    ]


def _of(used_bytes: int, whole_bytes: int) -> str:
    """`12.0/64.0 GB`."""
    used, whole = format_size(used_bytes), format_size(whole_bytes)
    if not used_bytes:
        return f"0/{whole}"
    return f"{used.split()[0]}/{whole}" if used.split()[1] == whole.split()[1] else f"{used}/{whole}"


def blocks(node: NodeView, marks: Mapping[str, Text], *, is_closed: bool = False) -> list[Text]:
    """A block per GPU, or per CPU; per several of them where there are too many for a line."""
    owners = _gpu_owners(node) if node.gpus else _cpu_owners(node)
    each = math.ceil(len(owners) / MOST_BLOCKS)
    return [_block(owners[at : at + each], marks, is_closed) for at in range(0, len(owners), each)]


def _gpu_owners(node: NodeView) -> list[list[NodeRun]]:
    owners: list[list[NodeRun]] = [[] for _ in range(node.gpus)]
    for run in node.runs:
        for gpu in run.gpus:
            if gpu < len(owners):
                owners[gpu].append(run)
    return owners


def _cpu_owners(node: NodeView) -> list[list[NodeRun]]:
    """CPUs have no numbers: runs are laid side by side. Each has a block at least, if there are as many."""
    each = max(1, math.ceil(node.cpus / (MOST_BLOCKS // 2)))
    count = max(1, math.ceil(node.cpus / each))
    owners: list[list[NodeRun]] = []
    for run in node.runs:
        owners += [[run]] * max(1, round(run.cpus / each))
    return owners[:count] + [[] for _ in range(count - len(owners))]


def _block(owners: Sequence[Sequence[NodeRun]], marks: Mapping[str, Text], is_closed: bool) -> Text:
    runs = {run.id: run for some in owners for run in some}
    if not runs:
        return (_CLOSED, ("yellow",)) if is_closed else (_FREE, ("dim",))
    if len(runs) > 1:
        return _SHARED, ("inverse",)
    [run] = runs.values()
    letter, styles = marks.get(run.id, (_OTHER, ("inverse",)))
    return (letter.lower() if run.gpu_part < 1.0 else letter), styles


def _joined(picture: Sequence[Text]) -> list[Text]:
    """Neighbours with the same styles as one, so that colours are told once."""
    return [
        ("".join(text for text, _ in some), styles)
        for styles, some in ((styles, list(same)) for styles, same in groupby(picture, key=lambda block: block[1]))
    ]


# ---- a character per node ----------------------------------------------------------------------------------------


def _map(
    nodes: Sequence[NodeView], asides: Mapping[tuple[str, str], AsideView], width: int, paint: Paint, now: float
) -> list[str]:
    """Rows of nodes that are near each other, each as full as it is; what is free of a row beside it."""
    groups = _near(nodes)
    label_width = min(MOST_NAMED, max(cells(label) for label, _ in groups))
    rows = [row for label, some in groups for row in _folded(label, some, max(16, width - label_width - 26))]
    across = max(len(row) for _, row in rows)
    lines = []
    for label, row in rows:
        picture = [_level(node, is_closed=(node.engine, node.name) in asides) for node in row]
        drawn = "".join(paint(text, *styles) for text, styles in _joined(picture)) + " " * (across - len(row))
        lines.append(f"  {fit(label, label_width).ljust(label_width)}  {drawn}  {paint(_free(row), 'dim')}")
    key = f"{_FREE} idle  {_LEVELS[3]} half in use  {_LEVELS[-1]} in use  {_CLOSED} set aside"
    lines += ["", "  " + paint(key, "dim")]
    closed = [(node.name, aside) for node in nodes if (aside := asides.get((node.engine, node.name))) is not None]
    for name, aside in closed[:MOST_CLOSED]:
        lines.append("  " + paint(fit(f"{_CLOSED} {name} {describe(aside, now)}", width - 2), "yellow"))
    if len(closed) > MOST_CLOSED:
        lines.append("  " + paint(f"{_CLOSED} {len(closed) - MOST_CLOSED} more: `windlass nodes ls`", "yellow"))
    return lines


def _near(nodes: Sequence[NodeView]) -> list[tuple[str, list[NodeView]]]:
    """By as many levels of the topology as give a picture that is not too long."""
    depth = max(len(node.topology) for node in nodes)
    while depth and len({tuple(node.topology[:depth]) for node in nodes}) > MOST_NODES:
        depth -= 1
    groups = [(where, list(some)) for where, some in groupby(nodes, key=lambda node: node.topology[:depth])]
    return [(" / ".join(where) or f"{some[0].name} …", some) for where, some in groups]


def _folded(label: str, nodes: Sequence[NodeView], across: int) -> list[tuple[str, Sequence[NodeView]]]:
    """In rows of equal length. Of a part of the topology only the first has its name."""
    each = math.ceil(len(nodes) / math.ceil(len(nodes) / across))
    rows = [nodes[at : at + each] for at in range(0, len(nodes), each)]
    return [(label if not at else "" if nodes[0].topology else f"{row[0].name} …", row) for at, row in enumerate(rows)]


def _level(node: NodeView, *, is_closed: bool) -> Text:
    if is_closed:
        return _CLOSED, ("yellow",)
    used, whole = (node.gpus_used, node.gpus) if node.gpus else (node.cpus_used, node.cpus)
    part = used / whole if whole else 0.0
    if part <= 0:
        return _FREE, ("dim",)
    level = _LEVELS[min(len(_LEVELS) - 1, math.ceil(part * len(_LEVELS)) - 1)]
    return level, ("cyan",) if part >= 1 else ("green",)


def _free(nodes: Sequence[NodeView]) -> str:
    gpus = sum(node.gpus for node in nodes)
    if gpus:
        return f"{gpus - sum(node.gpus_used for node in nodes):,} of {gpus:,} {_word(nodes)} free"
    cpus = sum(node.cpus for node in nodes)
    return f"{cpus - sum(node.cpus_used for node in nodes):,.4g} of {cpus:,.5g} CPU free"


def _word(nodes: Iterable[NodeView]) -> str:
    """What their accelerators are, all of them together."""
    kinds = sorted({"TPU" if is_tpu(node.gpu_type) else "GPU" for node in nodes if node.gpus})
    return " and ".join(kinds) or "GPU"


# ---- who is who --------------------------------------------------------------------------------------------------


def _legend(runs: Sequence[Held], marks: Mapping[str, Text] | None, width: int, paint: Paint) -> list[str]:
    shown = runs[:MOST_LISTED] if marks is None else runs[: len(_LETTERS)]
    amounts = [_amount(held) for held in shown]
    id_width = max(len(held.run.id) for held in shown)
    amount_width = max(len(amount) for amount in amounts)
    project_width = max(cells(held.run.project) for held in shown)
    left = width - id_width - amount_width - project_width - 11
    name_width = min(max(cells(held.run.name) for held in shown), max(8, left))
    lines = [f"  {paint('the largest runs', 'dim')}"] if marks is None else []
    for held, amount in zip(shown, amounts, strict=True):
        letter, styles = (marks or {}).get(held.run.id, (" ", ()))
        name = fit(held.run.name, name_width)
        said = f"{name}{' ' * (name_width - cells(name))}  {held.run.project.ljust(project_width)}"
        id = held.run.id.ljust(id_width)
        mark = "" if marks is None else f"{paint(letter, *styles)} "
        lines.append(f"  {mark}{paint(id, 'bold')}  {said}  {paint(amount, 'dim')}")
    more = len(runs) - len(shown)
    if more:
        mark = "" if marks is None else paint(_OTHER, "inverse") + " "
        lines.append(f"  {mark}{paint(f'{more:,} more runs', 'dim')}")
    return lines


def _amount(held: Held) -> str:
    amount = f"{held.gpus:g} {held.word}" if held.gpus else f"{held.cpus:g} CPU"
    return f"{amount} on {held.nodes:,} nodes" if held.nodes > 1 else amount
