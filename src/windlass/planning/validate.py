"""`python -m windlass.planning.validate`: predicted against published, as the tables in docs/planning.md."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from windlass.planning.choice import rank_plans
from windlass.planning.facts import ClusterFacts
from windlass.planning.gpus import GIB
from windlass.planning.memory import RESERVED_BYTES, memory_of
from windlass.planning.published import Basis, Published, published_runs
from windlass.planning.shapes import infer_model
from windlass.planning.timing import Timing, time_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    run: Published
    tokens_per_s: float
    mfu: float
    memory_gib: float
    timing: Timing

    @property
    def error(self) -> float:
        return self.tokens_per_s / self.run.tokens_per_s - 1


def compare(run: Published) -> Comparison:
    timing = time_of(run.plan, run.model, run.cluster, run.microbatch, run.software)
    speed = run.batch * run.model.sequence / timing.step / run.plan.world_size
    memory = memory_of(run.plan, run.model, run.microbatch, run.software)
    peak = (run.cluster.gpu.bf16 or run.cluster.gpu.fp16) * 1e12
    return Comparison(
        run=run,
        tokens_per_s=speed,
        mfu=speed * run.model.flops_per_token / peak,
        memory_gib=(memory.total + RESERVED_BYTES) / GIB,
        timing=timing,
    )


def render_table(comparisons: Sequence[Comparison]) -> Iterator[str]:
    yield "| run | GPUs | plan | published tokens/s/GPU | predicted | error | MFU | memory, GiB | |"
    yield "|---|---:|---|---:|---:|---:|---:|---:|---|"
    for found in comparisons:
        run = found.run
        plan = run.plan
        factors = [
            f"{name} {size}"
            for name, size in (
                ("data", plan.data), ("shard", plan.shard), ("tensor", plan.tensor), ("pipeline", plan.pipeline),
            )
            if size and size > 1
        ]  # fmt: skip
        words = [" × ".join(factors) or "one GPU", str(plan.precision)]
        memory = f"{run.memory_gib:.0f} → {found.memory_gib:.0f}" if run.memory_gib else ""
        yield (
            f"| {run.name} | {plan.world_size:,} | {', '.join(words)} | {run.tokens_per_s:,.0f} | "
            f"{found.tokens_per_s:,.0f} | {found.error:+.0%} | {found.mfu:.0%} | {memory} | "
            f"{run.basis} |"
        )


def render_summary(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """How large the errors are, without their signs, by what the rows can prove."""
    yield "| error of the speed | rows | median | largest |"
    yield "|---|---:|---:|---:|"
    for basis, words in (
        (Basis.FITTED, "fitted: a constant was chosen for them"),
        (Basis.ADJUSTED, "adjusted: what the source leaves open was settled after a first comparison"),
        (Basis.UNTOUCHED, "untouched"),
    ):
        errors = [abs(found.error) for found in comparisons if found.run.basis is basis]
        yield f"| {words} | {len(errors)} | {statistics.median(errors):.0%} | {max(errors):.0%} |"


def render_examples() -> Iterator[str]:
    """The two examples of the requirements: a training of 7B, and GPT-3's."""
    yield "| example | said | predicted |"
    yield "|---|---|---|"
    cluster = ClusterFacts(world_size=64, gpu_type="a100-80g")
    best = rank_plans(infer_model(7_000_000_000).model, cluster, batch=1024)[0]
    tokens, hours = best.tokens_per_s * 336 * 3600, 64 * 336
    yield (
        f"| 7B on 64 A100 80 GB, 336 hours at $2.68 | $576,768 | ${hours * 2.68:,.0f} for {tokens / 1e9:,.0f}B tokens; "
        f"1 TB of text, about 250B tokens, takes {best.days(250e9):.1f} days |"
    )
    gpt = compare(next(run for run in published_runs() if run.name == "Megatron-LM 175B"))
    days = 300e9 / (gpt.tokens_per_s * 1024) / 86_400
    yield (
        f"| GPT-3 175B on 1,024 A100 80 GB, 300B tokens at $2.50 | 34 days, $2.1M | "
        f"{days:.1f} days, ${days * 24 * 1024 * 2.5 / 1e6:.1f}M |"
    )


def main() -> None:
    comparisons = [compare(run) for run in published_runs()]
    for part in (render_table(comparisons), render_summary(comparisons), render_examples()):
        print("\n".join(part), end="\n\n")


if __name__ == "__main__":
    main()
