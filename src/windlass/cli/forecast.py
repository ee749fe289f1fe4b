"""What `plan` shows: the plans that were found, as a table or as JSON, and where the first one's time and memory go."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from windlass.cli.terminal import Cell, cells, paint_for, table, width_of
from windlass.core.plan import Plan
from windlass.planning import Candidate, ClusterFacts, ModelFacts
from windlass.planning.counts import format_count

_PROSE = 120  # columns that are comfortable to read, where there are more
_INDENT = " " * 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What was asked, with what was assumed filled in."""

    model: ModelFacts
    cluster: ClusterFacts
    batch: int
    tokens: int | None
    usd_per_gpu_hour: float
    assumed: tuple[str, ...]


def render_answer(question: Question, candidates: Sequence[Candidate], top: int) -> Iterator[str]:
    """The heading, the plans, and where the best one's time and memory go."""
    best = candidates[0]
    yield from _prose(_heading(question, best.plan), "bold")
    if question.assumed:
        yield from _prose("assumed: " + "; ".join(question.assumed), "dim")
    yield ""
    cost = ["DAYS", "COST"] if question.tokens else []
    headers = ["PLAN", "GB/GPU", "MFU", *cost, "TOKENS/S", "STEP", "MICROBATCHES"]
    rows = [_row(question, candidate, first=index == 0) for index, candidate in enumerate(candidates[:top])]
    shown = _columns_that_fit(headers, rows, least=3 + len(cost))
    yield table(headers[:shown], [row[:shown] for row in rows], flexible=0, stream=sys.stdout)
    if len(candidates) > len(rows):
        yield from _prose(f"and {len(candidates) - len(rows)} more; --top {len(candidates)} shows all", "dim")
    yield ""
    yield f"first:   --plan {best.plan}"  # to be copied, so in one line whatever its length
    yield from _prose(f"step:    {_shares(_seconds(best), best.timing.step)}")
    yield from _prose(f"memory:  {_shares(asdict(best.memory), best.memory.total)}")
    yield from _prose("predicted; docs/planning.md says how far off this was for published runs", "dim")


def _heading(question: Question, best: Plan) -> str:
    model, cluster = question.model, question.cluster
    per_step = format_count(question.batch * (model.sequence or 0))
    where = f"{format_count(model.parameters)} parameters on {cluster.world_size:,} × {cluster.gpu.name}"
    total = f", {format_count(question.tokens)} in all" if question.tokens else ""
    return f"{where}, {best.precision}, {per_step} tokens a step{total}"


def _columns_that_fit(headers: Sequence[str], rows: Sequence[Sequence[Cell | str]], *, least: int) -> int:
    """How many of them a terminal has room for without cutting the plans short; the last ones matter least."""
    texts = [headers, *([cell.text if isinstance(cell, Cell) else cell for cell in row] for row in rows)]
    widths = [max(map(cells, column)) + 2 for column in zip(*texts, strict=True)]
    room = width_of(sys.stdout) + 2
    return next((count for count in range(len(headers), least, -1) if sum(widths[:count]) <= room), least)


def plan_words(plan: Plan) -> str:
    """Short, for a row: what differs between plans of one question."""
    factors = [("data", plan.data or 1), ("shard", plan.shard), ("tensor", plan.tensor), ("pipeline", plan.pipeline)]
    words = [" × ".join(f"{name} {size}" for name, size in factors if size > 1) or "data 1"]
    if plan.shard > 1:
        words.append(f"zero {plan.zero}")
    if plan.pipeline > 1:
        words.append(f"{plan.schedule} {plan.stages}" if plan.stages else str(plan.schedule))
    if plan.activation_checkpoint != "none":
        words.append(f"recompute {plan.activation_checkpoint}")
    return ", ".join(words)


def _row(question: Question, candidate: Candidate, *, first: bool) -> list[Cell | str]:
    plan, tokens = candidate.plan, question.tokens
    row: list[Cell | str] = [
        Cell(plan_words(plan), ("bold",) if first else ()),
        f"{candidate.memory.total / 1e9:.1f}",
        Cell(f"{candidate.mfu:.1%}", ("green",) if first else ()),
    ]
    if tokens:
        row.append(f"{candidate.days(tokens):,.1f}")
        row.append(f"${candidate.dollars(tokens, question.usd_per_gpu_hour):,.0f}")
    return [
        *row,
        f"{candidate.tokens_per_s:,.0f}",
        f"{candidate.timing.step:.2f} s",
        f"{plan.accumulate} of {candidate.microbatch}",
    ]


def _shares(parts: dict[str, float], whole: float) -> str:
    shown = {name: size / whole for name, size in parts.items() if size / whole >= 0.005}
    return ", ".join(f"{name} {share:.0%}" for name, share in sorted(shown.items(), key=lambda part: -part[1]))


def _seconds(candidate: Candidate) -> dict[str, float]:
    words = {
        "tensor": "sums within tensor",
        "exchange": "waiting for data and shard",
        "messages": "pipeline messages",
        "host": "state from the host and back",
    }
    return {words.get(name, name): seconds for name, seconds in asdict(candidate.timing).items()}


def _prose(text: str, *styles: str) -> Iterator[str]:
    paint = paint_for(sys.stdout)
    width = min(width_of(sys.stdout), _PROSE)
    for line in textwrap.wrap(
        text, width=width, subsequent_indent=_INDENT, break_on_hyphens=False, break_long_words=False
    ):
        yield paint(line, *styles)


def as_json(question: Question, candidates: Sequence[Candidate]) -> dict[str, Any]:
    cluster, tokens = question.cluster, question.tokens
    return {
        "model": asdict(question.model),
        "cluster": {
            "gpus": cluster.world_size,
            "gpu_type": cluster.gpu.name,
            "memory_bytes": cluster.gpu.memory_bytes,
            "gpus_per_node": cluster.per_node,
            "node_gbps": cluster.between_nodes * cluster.per_node * 8 / 1e9,
        },
        "batch": question.batch,
        "tokens": tokens,
        "usd_per_gpu_hour": question.usd_per_gpu_hour,
        "assumed": list(question.assumed),
        "plans": [
            {
                "plan": candidate.plan.as_dict(),
                "microbatch": candidate.microbatch,
                "memory_bytes": {name: round(size) for name, size in asdict(candidate.memory).items()}
                | {"total": round(candidate.memory.total)},
                "step_s": asdict(candidate.timing) | {"total": candidate.timing.step},
                "mfu": candidate.mfu,
                "tokens_per_s": candidate.tokens_per_s,
                "days": candidate.days(tokens) if tokens else None,
                "usd": candidate.dollars(tokens, question.usd_per_gpu_hour) if tokens else None,
            }
            for candidate in candidates
        ],
    }
