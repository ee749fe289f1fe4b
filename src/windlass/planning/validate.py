"""`python -m windlass.planning.validate`: predicted against published, as the table in docs/planning.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from windlass.planning.gpus import GIB
from windlass.planning.memory import RESERVED_BYTES, memory_of
from windlass.planning.published import Published, published_runs
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
            f"{'fitted' if run.fitted else ''} |"
        )


def main() -> None:
    comparisons = [compare(run) for run in published_runs()]
    for line in render_table(comparisons):
        print(line)


if __name__ == "__main__":
    main()
