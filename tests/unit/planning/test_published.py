"""The planner against published runs: the errors that docs/planning.md states are the ones it makes."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from windlass.planning.gpus import GIB, GPUS
from windlass.planning.published import Basis, published_runs
from windlass.planning.validate import Comparison, compare
from windlass.tenancy.prices import PriceBook

DOCS = Path(__file__).parents[3] / "docs" / "planning.md"
COMPARISONS = [compare(run) for run in published_runs()]


def of(source: str, **facts: object) -> list[Comparison]:
    return [
        found
        for found in COMPARISONS
        if found.run.source.startswith(source)
        and all(getattr(found.run.cluster, name) == value for name, value in facts.items())
    ]


def test_the_plans_of_published_runs_are_plans() -> None:
    for found in COMPARISONS:
        assert found.run.plan.world_size == found.run.cluster.world_size
        assert found.run.plan.check_batch(found.run.batch) == found.run.microbatch


def test_megatron() -> None:
    found = of("Narayanan")
    assert len(found) == 11
    assert max(abs(one.error) for one in found) < 0.12
    big = next(one for one in found if one.run.name == "Megatron-LM 175B")
    days = 300e9 / (big.tokens_per_s * 1024) / 86_400
    assert days == pytest.approx(34, rel=0.06)


def test_torchtitan() -> None:
    found = of("torchtitan")
    assert max(abs(one.error) for one in found) < 0.1
    in_bf16 = [one for one in found if one.run.plan.precision == "bf16"]
    assert [one.run.tokens_per_s for one in in_bf16] == [5762, 6667, 5605, 6514]
    assert max(abs(one.error) for one in in_bf16) < 0.06


def test_memory() -> None:
    """Within a tenth of what was measured, but for two rows that docs/planning.md speaks of."""
    errors = [one.memory_gib / one.run.memory_gib - 1 for one in COMPARISONS if one.run.memory_gib]
    assert len(errors) == 9
    assert sum(abs(error) < 0.1 for error in errors) == 7
    assert max(abs(error) for error in errors) < 0.22


def test_runs_that_nothing_was_fitted_on() -> None:
    held_out = [one for one in COMPARISONS if one.run.basis is Basis.UNTOUCHED]
    ampere = [abs(one.error) for one in held_out if one.run.cluster.gpu.name.startswith("a100")]
    hopper = [abs(one.error) for one in held_out if one.run.cluster.gpu.name.startswith("h100")]
    assert (len(ampere), len(hopper)) == (8, 10)
    assert max(ampere) < 0.11
    assert statistics.median(hopper) < 0.12
    assert max(hopper) < 0.4


def test_the_docs_have_the_tables_that_the_command_prints() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "windlass.planning.validate"], capture_output=True, text=True, check=True, timeout=60
    )
    docs = DOCS.read_text()
    for printed in done.stdout.strip().split("\n\n"):
        assert printed in docs, "docs/planning.md: paste what `python -m windlass.planning.validate` prints"


def test_the_docs_have_every_gpu() -> None:
    docs = DOCS.read_text()
    prices = PriceBook()
    for gpu in GPUS.values():
        speeds = " | ".join(f"{speed:g}" if speed else "" for speed in (gpu.fp32, gpu.fp16, gpu.bf16, gpu.fp8))
        links = f"{gpu.within_node / 1e9:g} | {gpu.between_nodes / 1e9:g} | {gpu.per_node}"
        row = (
            f"| `{gpu.name}` | {gpu.memory_bytes / GIB:.1f} | {gpu.memory_bandwidth / 1e12:g} | {speeds} | {links} | "
            f"{gpu.sustained:g} | {prices.gpu_price(gpu.name):.2f} |"
        )
        assert row in docs, f"docs/planning.md lacks the row\n{row}"
