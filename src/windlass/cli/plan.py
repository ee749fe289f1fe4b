"""`plan`: which plans fit a model on some GPUs, how fast they are, and what the training costs. Needs no server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from windlass.cli import options
from windlass.cli.terminal import say, say_json
from windlass.core.errors import InvalidInput

if TYPE_CHECKING:
    from windlass.core.wanted import Wanted
    from windlass.planning import ClusterFacts

Params = Annotated[str, typer.Option("--params", help="The model's parameters, e.g. 350M or 7B.")]
GpuCount = Annotated[int, typer.Option("--gpus", min=1, help="How many GPUs, in all nodes together.")]
# Must be given too. The parser would say so without the names that there are.
GpuType = Annotated[str | None, typer.Option("--gpu-type", help="Which, e.g. a100-80g, h100, l4; must be given.")]
Tokens = Annotated[str | None, typer.Option("--tokens", help="Tokens to train on, e.g. 300B or 1T.")]
Layers = Annotated[int | None, typer.Option("--layers", min=1, help="Blocks.")]
Width = Annotated[int | None, typer.Option("--width", min=1, help="Width of the model.")]
Heads = Annotated[int | None, typer.Option("--heads", min=1, help="Attention heads.")]
KvHeads = Annotated[int | None, typer.Option("--kv-heads", min=1, help="Heads for keys and values, if fewer.")]
Vocabulary = Annotated[int | None, typer.Option("--vocabulary", min=1, help="Size of the vocabulary.")]
Tied = Annotated[
    bool | None,
    typer.Option("--tied/--untied", help="Whether head and embedding are one weight, which no pipeline has."),
]
Sequence_ = Annotated[int | None, typer.Option("--sequence", min=1, help="Tokens of a sample.")]
Batch = Annotated[int | None, typer.Option("--batch", min=1, help="Samples of a step, on all GPUs together.")]
PerNode = Annotated[int | None, typer.Option("--gpus-per-node", min=1, help="GPUs of one node.")]
Interconnect = Annotated[
    str | None, typer.Option("--interconnect", metavar="GBPS", help="Between nodes, Gb/s for each node, e.g. 3200.")
]
PrecisionName = Annotated[str | None, typer.Option("--precision", help="fp32, bf16, fp16 or fp8.")]
Price = Annotated[float | None, typer.Option("--price", min=0, help="Dollars per GPU and hour.")]
PlanKeys = Annotated[
    str | None, typer.Option("--plan", metavar="K=V,...", help="What plans are to have, e.g. tensor=8,pipeline=4.")
]
Top = Annotated[int, typer.Option("--top", min=1, help="How many plans to show.")]


def plan(
    params: Params,
    gpus: GpuCount,
    gpu_type: GpuType = None,
    tokens: Tokens = None,
    layers: Layers = None,
    width: Width = None,
    heads: Heads = None,
    kv_heads: KvHeads = None,
    vocabulary: Vocabulary = None,
    sequence: Sequence_ = None,
    tied: Tied = None,
    batch: Batch = None,
    gpus_per_node: PerNode = None,
    interconnect: Interconnect = None,
    precision: PrecisionName = None,
    price: Price = None,
    wanted: PlanKeys = None,
    top: Top = 10,
    json: options.Json = False,
) -> None:
    """Show which plans fit a model on some GPUs, the fastest first, with memory, MFU, days and dollars."""
    from windlass.cli.forecast import Question, as_json, render_answer
    from windlass.planning import ClusterFacts, rank_plans
    from windlass.planning.counts import parse_count
    from windlass.planning.gpus import GPUS
    from windlass.planning.shapes import infer_model, usual_batch

    if gpu_type is None:
        raise InvalidInput(f"--gpu-type is missing; known: {', '.join(GPUS)}")
    asked = _wanted(precision, wanted)
    if tied is None and asked.named.get("pipeline", 1) > 1:
        tied = False  # the two ends are on different GPUs
    inferred = infer_model(
        parse_count(params, what="--params"),
        layers=layers, width=width, heads=heads, kv_heads=kv_heads, vocabulary=vocabulary, sequence=sequence, tied=tied,
    )  # fmt: skip
    model = inferred.model
    cluster = ClusterFacts(
        world_size=gpus, gpu_type=gpu_type, gpus_per_node=gpus_per_node, node_gbps=_gbps(interconnect)
    )
    if cluster.gpu.is_cpu:
        raise InvalidInput(f"--gpu-type {gpu_type}: only GPUs are reckoned; known: {', '.join(GPUS)}")
    _check_nodes(cluster)
    assumed = [*inferred.assumed, *_assumed_cluster(cluster)]
    if batch is None:
        batch = usual_batch(model, gpus)
        assumed.append(f"a batch of {batch:,}")
    dollars, source = _price(price, cluster.gpu.name)
    question = Question(
        model=model,
        cluster=cluster,
        batch=batch,
        tokens=parse_count(tokens, what="--tokens") if tokens else None,
        usd_per_gpu_hour=dollars,
        assumed=(*assumed, f"${dollars:,.2f} per GPU and hour ({source})") if price is None else tuple(assumed),
    )
    candidates = rank_plans(model, cluster, batch=batch, wanted=asked)
    if json:
        say_json(as_json(question, candidates[:top]))
        return
    for line in render_answer(question, candidates, top):
        say(line)


def _wanted(precision: str | None, plan: str | None) -> Wanted:
    """What every plan is to have; the rest is chosen."""
    from windlass.core.plan import plan_keys
    from windlass.core.wanted import AUTO, Wanted

    named = plan_keys(plan, others=(AUTO,))
    named.pop(AUTO, None)
    if precision is not None:
        (asked,) = plan_keys({"precision": precision}).values()
        if named.setdefault("precision", asked) is not asked:
            raise InvalidInput(f"--plan says precision={named['precision']} and --precision {asked}; give one of them")
    return Wanted(named=named, auto=True)


def _check_nodes(cluster: ClusterFacts) -> None:
    """InvalidInput for a part of a node: the network is reckoned for nodes that are alike."""
    gpus, each = cluster.world_size, cluster.per_node
    if gpus % each:
        below, above = gpus // each * each, (gpus // each + 1) * each
        even = max(part for part in range(1, each + 1) if gpus % part == 0)
        raise InvalidInput(
            f"--gpus {gpus} are no whole number of nodes with {each} GPUs; {below} or {above} would be",
            hint=f"or, where nodes have fewer, --gpus-per-node {even}",
        )


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
    import re

    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:g|gb|gbps|gbit|gb/s|gbit/s)?\s*", text.lower())
    if match is None or float(match[1]) <= 0:
        raise InvalidInput(f"--interconnect {text!r} is not a speed; write Gb/s for each node, e.g. 400 or 3200Gb/s")
    return float(match[1])
