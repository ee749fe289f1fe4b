from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.resources import NodeShare, Placement
from windlass.tenancy.prices import DEFAULT_GPU_USD, UNKNOWN_GPU_USD, PriceBook, Spent, spent_on

TWO_NODES = Placement(
    engine="local",
    shares=(
        NodeShare(node="a", cpus=4, memory_bytes=0, gpu_indices=(0, 1)),
        NodeShare(node="b", cpus=4, memory_bytes=0, gpu_indices=(2, 3)),
    ),
)


def test_what_a_run_holds_is_what_it_costs() -> None:
    spent = spent_on(TWO_NODES, "h100", 1_800, PriceBook(cpu_usd=0.5, gpu_usd={"h100": 2.0}))
    assert spent == Spent(cpu_hours=4.0, gpu_hours=2.0, usd=6.0)


def test_half_a_gpu_costs_half() -> None:
    half = Placement(engine="x", shares=(NodeShare(node="a", cpus=0, memory_bytes=0, gpu_indices=(1,), gpu_part=0.5),))
    assert spent_on(half, "h100", 3_600, PriceBook(gpu_usd={"h100": 2.0})).usd == 1.0


def test_prices_of_gpus_are_found_whatever_their_spelling() -> None:
    book = PriceBook()
    assert book.gpu_price("h100") == book.gpu_price("H100-SXM5-80GB") == DEFAULT_GPU_USD["h100"]
    assert book.gpu_price("gaudi3") == book.gpu_price(None) == UNKNOWN_GPU_USD


def test_the_longest_matching_name_has_the_price() -> None:
    """An L40S is not a small L4, and an H200 is not an H100, whatever order they are listed in."""
    book = PriceBook(gpu_usd={"l4": 1.0, "l40s": 5.0})
    assert book.gpu_price("l40s") == 5.0
    assert book.gpu_price("l4") == 1.0


def test_spending_adds_up() -> None:
    one = Spent(cpu_hours=1, gpu_hours=2, usd=3)
    assert one + one == Spent(cpu_hours=2, gpu_hours=4, usd=6)


@given(st.floats(-1e6, 1e9))
def test_costs_are_never_negative(seconds: float) -> None:
    spent = spent_on(TWO_NODES, None, seconds, PriceBook())
    assert min(spent.cpu_hours, spent.gpu_hours, spent.usd) >= 0
    assert spent.usd == pytest.approx(max(0.0, seconds) / 3600 * (8 * 0.04 + 4 * UNKNOWN_GPU_USD))
