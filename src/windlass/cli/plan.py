"""`plan`: which plans fit a model on some GPUs, how fast they are, and what the training costs. Needs no server."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windlass.cli import options
from windlass.cli.terminal import Cell, cells, paint_for, say, say_json, table, width_of
from windlass.core.errors import InvalidInput

if TYPE_CHECKING:
    from windlass.core.plan import Plan
    from windlass.planning import Candidate, ClusterFacts, ModelFacts

Params = Annotated[str, typer.Option("--params", help="The model's parameters, e.g. 350M or 7B.")]
GpuCount = Annotated[int, typer.Option("--gpus", min=1, help="How many GPUs, in all nodes together.")]
GpuType = Annotated[str, typer.Option("--gpu-type", help="Which, e.g. a100-80g, h100, l4.")]
Tokens = Annotated[str | None, typer.Option("--tokens", help="Tokens to train on, e.g. 300B or 1T.")]
Layers = Annotated[int | None, typer.Option("--layers", min=1, help="Blocks.")]
Width = Annotated[int | None, typer.Option("--width", min=1, help="Width of the model.")]
Heads = Annotated[int | None, typer.Option("--heads", min=1, help="Attention heads.")]
KvHeads = Annotated[int | None, typer.Option("--kv-heads", min=1, help="Heads for keys and values, if fewer.")]
Vocabulary = Annotated[int | None, typer.Option("--vocabulary", min=1, help="Size of the vocabulary.")]
Sequence_ = Annotated[int | None, typer.Option("--sequence", min=1, help="Tokens of a sample.")]
Batch = Annotated[int | None, typer.Option("--batch", min=1, help="Samples of a step, on all GPUs together.")]
PerNode = Annotated[int | None, typer.Option("--gpus-per-node", min=1, help="GPUs of one node.")]
Interconnect = Annotated[
    str | None, typer.Option("--interconnect", metavar="GBPS", help="Between nodes, Gb/s for each node, e.g. 3200.")
]
PrecisionName = Annotated[str | None, typer.Option("--precision", help="fp32, bf16, fp16 or fp8.")]
Price = Annotated[float | None, typer.Option("--price", min=0, help="Dollars per GPU and hour.")]
Wanted = Annotated[
    str | None, typer.Option("--plan", metavar="K=V,...", help="What plans are to have, e.g. tensor=8,pipeline=4.")
]
Top = Annotated[int, typer.Option("--top", min=1, help="How many plans to show.")]


_PROSE = 120  # columns that are comfortable to read, where there are more
_INDENT = " " * 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What was asked, with what was assumed filled in."""

    model: ModelFacts
    cluster: ClusterFacts
    batch: int
    base: Plan
    tokens: int | None
    usd_per_gpu_hour: float
    assumed: tuple[str, ...]


def plan(
    params: Params,
    gpus: GpuCount,
    gpu_type: GpuType,
    tokens: Tokens = None,
    layers: Layers = None,
    width: Width = None,
    heads: Heads = None,
    kv_heads: KvHeads = None,
    vocabulary: Vocabulary = None,
    sequence: Sequence_ = None,
    batch: Batch = None,
    gpus_per_node: PerNode = None,
    interconnect: Interconnect = None,
    precision: PrecisionName = None,
    price: Price = None,
    wanted: Wanted = None,
    top: Top = 10,
    json: options.Json = False,
) -> None:
    """Show which plans fit a model on some GPUs, the fastest first, with memory, MFU, days and dollars."""
    from windlass.planning import ClusterFacts, rank_plans
    from windlass.planning.counts import parse_count
    from windlass.planning.gpus import GPUS
    from windlass.planning.shapes import infer_model, usual_batch

    inferred = infer_model(
        parse_count(params, what="--params"),
        layers=layers, width=width, heads=heads, kv_heads=kv_heads, vocabulary=vocabulary, sequence=sequence,
    )  # fmt: skip
    model = inferred.model
    cluster = ClusterFacts(
        world_size=gpus, gpu_type=gpu_type, gpus_per_node=gpus_per_node, node_gbps=_gbps(interconnect)
    )
    if cluster.gpu.is_cpu:
        raise InvalidInput(f"--gpu-type {gpu_type}: only GPUs are reckoned; known: {', '.join(GPUS)}")
    assumed = [*inferred.assumed, *_assumed_cluster(cluster)]
    if batch is None:
        batch = usual_batch(model, gpus)
        assumed.append(f"a batch of {batch:,}")
    dollars, source = _price(price, cluster.gpu.name)
    question = Question(
        model=model,
        cluster=cluster,
        batch=batch,
        base=_base(cluster, precision, wanted),
        tokens=parse_count(tokens, what="--tokens") if tokens else None,
        usd_per_gpu_hour=dollars,
        assumed=(*assumed, f"${dollars:,.2f} per GPU and hour ({source})") if price is None else tuple(assumed),
    )
    candidates = rank_plans(model, cluster, batch=batch, base=question.base)
    if json:
        say_json(_as_json(question, candidates[:top]))
        return
    for line in render_answer(question, candidates, top):
        say(line)


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
    yield from _prose(f"first:   --plan {best.plan}")
    yield from _prose(f"step:    {_shares(_seconds(best), best.timing.step)}")
    yield from _prose(f"memory:  {_shares(asdict(best.memory), best.memory.total)}")
    yield from _prose("predicted; docs/planning.md says how far off this was for published runs", "dim")


def _heading(question: Question, best: Plan) -> str:
    from windlass.planning.counts import format_count

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
    words = {"tensor": "sums within tensor", "exchange": "waiting for data and shard", "messages": "pipeline messages"}
    return {words.get(name, name): seconds for name, seconds in asdict(candidate.timing).items()}


def _prose(text: str, *styles: str) -> Iterator[str]:
    import textwrap

    paint = paint_for(sys.stdout)
    width = min(width_of(sys.stdout), _PROSE)
    for line in textwrap.wrap(
        text, width=width, subsequent_indent=_INDENT, break_on_hyphens=False, break_long_words=False
    ):
        yield paint(line, *styles)


def _base(cluster: ClusterFacts, precision: str | None, wanted: str | None) -> Plan:
    """What every plan has. Compiled, since that is never slower and the recipes do it."""
    from windlass.core.plan import Precision, parse_plan

    base = replace(parse_plan(wanted), compile=True)
    if precision:
        base = replace(base, precision=parse_plan({"precision": precision}).precision)
    elif base.precision is Precision.FP32:
        base = replace(base, precision=cluster.default_precision())
    return base


def _price(given: float | None, gpu_name: str) -> tuple[float, str]:
    from windlass.tenancy.prices import PriceBook

    if given is not None:
        return given, "as given"
    return PriceBook().gpu_price(gpu_name), "a typical price; --price sets yours"


def _assumed_cluster(cluster: ClusterFacts) -> Iterator[str]:
    gpu = cluster.gpu
    if gpu.name != cluster.gpu_type.lower():
        yield f"{cluster.gpu_type} is {gpu.name}"
    if cluster.gpus_per_node is None and cluster.world_size > gpu.per_node:
        yield f"{gpu.per_node} GPUs per node"
    if cluster.node_gbps is None and cluster.world_size > cluster.per_node:
        yield f"{cluster.between_nodes * cluster.per_node * 8 / 1e9:,.0f} Gb/s between nodes"


def _gbps(text: str | None) -> float | None:
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:g|gb|gbps|gbit|gb/s|gbit/s)?\s*", text.lower())
    if match is None or float(match[1]) <= 0:
        raise InvalidInput(f"--interconnect {text!r} is not a speed; write Gb/s for each node, e.g. 400 or 3200Gb/s")
    return float(match[1])


def _as_json(question: Question, candidates: Sequence[Candidate]) -> dict[str, Any]:
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
