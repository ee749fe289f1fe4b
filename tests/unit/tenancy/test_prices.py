from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.resources import Node, NodeShare, Placement
from windlass.tenancy.prices import DEFAULT_GPU_USD, UNKNOWN_GPU_USD, PriceBook, Spent, hourly_usd, spent_on

TWO_NODES = Placement(
    engine="local",
    shares=(
        NodeShare(node="a", cpus=4, memory_bytes=0, gpu_indices=(0, 1)),
        NodeShare(node="b", cpus=4, memory_bytes=0, gpu_indices=(2, 3)),
    ),
)


def test_what_a_run_holds_is_what_it_costs() -> None:
    hourly = hourly_usd(TWO_NODES, "h100", PriceBook(cpu_usd=0.5, gpu_usd={"h100": 2.0}))
    spent = spent_on(TWO_NODES, hourly, 1_800)
    assert spent == Spent(cpu_hours=4.0, gpu_hours=2.0, usd=6.0)


def test_half_a_gpu_costs_half() -> None:
    half = Placement(engine="x", shares=(NodeShare(node="a", cpus=0, memory_bytes=0, gpu_indices=(1,), gpu_part=0.5),))
    assert hourly_usd(half, "h100", PriceBook(gpu_usd={"h100": 2.0})) == 1.0


def node(name: str, **facts: Any) -> Node:
    return Node(**{"engine": "x", "name": name, "cpus": 8, "memory_bytes": 100, **facts})


def test_nodes_with_a_price_of_their_own_cost_that() -> None:
    """By the GPUs that are held of it; the other node has none, and costs by the book, with the GPUs that it has."""
    nodes = {"a": node("a", gpus=8, gpu_type="h100", price_per_hour=16.0), "b": node("b", gpus=8, gpu_type="l4")}
    book = PriceBook(cpu_usd=0.5, gpu_usd={"h100": 100.0, "l4": 1.0})
    assert hourly_usd(TWO_NODES, "h100", book, nodes) == 16.0 * 2 / 8 + (4 * 0.5 + 2 * 1.0)


@pytest.mark.parametrize(
    ("cpus", "memory_bytes", "gpus", "usd"),
    [
        (4, 10, 0, 5.0),  # half of the CPUs
        (1, 90, 0, 9.0),  # most of the memory: nobody else can use the rest
        (4, 0, 8, 4 * 0.5),  # the GPUs are left to others
        (99, 0, 0, 10.0),  # not more than all of it
    ],
)
def test_parts_of_a_node_cost_their_part(cpus: float, memory_bytes: int, gpus: int, usd: float) -> None:
    held = Placement(engine="x", shares=(NodeShare(node="a", cpus=cpus, memory_bytes=memory_bytes),))
    nodes = {"a": node("a", gpus=gpus, price_per_hour=10.0)}
    assert hourly_usd(held, None, PriceBook(cpu_usd=0.5), nodes) == usd


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
    spent = spent_on(TWO_NODES, hourly_usd(TWO_NODES, None, PriceBook()), seconds)
    assert min(spent.cpu_hours, spent.gpu_hours, spent.usd) >= 0
    assert spent.usd == pytest.approx(max(0.0, seconds) / 3600 * (8 * 0.04 + 4 * UNKNOWN_GPU_USD))
