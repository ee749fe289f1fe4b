"""Metrics of machines."""

from __future__ import annotations

import math
from typing import Any

import pytest

from windlass.tracking.system import MOST_NODES, MOST_RANKS, system_points, without_system

USAGE: dict[str, Any] = {
    "at": 1_000.0,
    "cpu_percent": 150.0,
    "rss_bytes": 2_000,
    "cpu_seconds": 12.5,
    "gpus": [{"index": 0, "utilization_percent": 90, "memory_used_bytes": 7}, {"index": 0, "power_watts": 300.0}],
    "ranks": [{"rank": 0, "cpu_percent": 100.0, "rss_bytes": 1}, {"rank": 1, "cpu_percent": 50.0, "rss_bytes": 2}],
}


def names(usage: dict[str, Any]) -> dict[str, float]:
    return {point.name: point.value for point in system_points(usage)}


def test_a_sample_becomes_points_of_one_moment() -> None:
    assert {point.at for point in system_points(USAGE)} == {1_000.0}
    assert {point.step for point in system_points(USAGE)} == {None}
    assert names(USAGE) == {
        "system/cpu_percent": 150.0,
        "system/rss_bytes": 2_000,
        "system/cpu_seconds": 12.5,
        "system/gpu/0/utilization_percent": 90,
        "system/gpu/0/memory_used_bytes": 7,
        "system/gpu/1/power_watts": 300.0,
        "system/rank/0/cpu_percent": 100.0,
        "system/rank/0/rss_bytes": 1,
        "system/rank/1/cpu_percent": 50.0,
        "system/rank/1/rss_bytes": 2,
    }


def test_one_rank_and_very_many_are_told_as_a_whole() -> None:
    one = {**USAGE, "ranks": USAGE["ranks"][:1]}
    many = {**USAGE, "ranks": [{"rank": rank, "rss_bytes": 1} for rank in range(MOST_RANKS + 1)]}
    for usage in (one, many):
        assert not any(name.startswith("system/rank") for name in names(usage))


def test_disks_and_network_of_one_node_are_those_of_the_run() -> None:
    node = {"node": 0, "cpu_percent": 1.0, "disk_read_bytes_per_s": 10.0, "disk_used_percent": 40.0}
    found = names({**USAGE, "nodes": [node]})
    assert found["system/disk_read_bytes_per_s"] == 10.0
    assert found["system/disk_used_percent"] == 40.0
    assert not any(name.startswith("system/node") for name in found)


def test_of_several_nodes_there_are_sums_and_each_of_them() -> None:
    first = {"node": 0, "cpu_percent": 60.0, "network_in_bytes_per_s": 5.0, "disk_used_percent": 40.0}
    second = {"node": 1, "network_in_bytes_per_s": 7.0, "disk_used_percent": 93.5, "network_out_bytes_per_s": "much"}
    found = names({**USAGE, "nodes": [first, second]})
    assert found["system/network_in_bytes_per_s"] == 12.0
    assert "system/network_out_bytes_per_s" not in found
    assert found["system/disk_used_percent"] == 93.5  # the fullest
    assert found["system/node/1/network_in_bytes_per_s"] == 7.0
    assert found["system/node/0/cpu_percent"] == 60.0
    many = [{"node": number, "network_in_bytes_per_s": 1.0} for number in range(MOST_NODES + 1)]
    assert not any(name.startswith("system/node") for name in names({**USAGE, "nodes": many}))


def test_a_machine_that_is_several_nodes_counts_once() -> None:
    rates = {"network_in_bytes_per_s": 5.0, "disk_read_bytes_per_s": 3.0}
    nodes = [
        {"node": 0, "host": "a", "network": "a 1", **rates},
        {"node": 1, "host": "a", "network": "a 2", **rates},  # a pod has a network of its own
        {"node": 2, "host": "a", "network": "a 2", **rates},
        {"node": 3, "host": ["odd"], "network": None, **rates},
    ]
    found = names({**USAGE, "nodes": nodes})
    assert found["system/network_in_bytes_per_s"] == 15.0
    assert found["system/disk_read_bytes_per_s"] == 6.0


@pytest.mark.parametrize("at", [None, "now", math.nan, -1, True])
def test_a_sample_without_a_time_is_none(at: Any) -> None:
    assert system_points({**USAGE, "at": at}) == []


def test_what_is_no_number_is_passed_over() -> None:
    odd = {
        "at": 1.0,
        "cpu_percent": "much",
        "rss_bytes": math.inf,
        "cpu_seconds": True,
        "gpus": "none",
        "nodes": [{"node": 0, "disk_used_percent": math.nan}],
        "ranks": [3, None],
    }
    assert system_points(odd) == []
    odder = {
        "at": 1.0,
        "cpu_percent": 10**400,
        "ranks": [{"rank": "x" * 400, "rss_bytes": 1}, {"rank": -1, "rss_bytes": 1}],
    }
    assert system_points(odder) == []


def test_they_are_shown_apart() -> None:
    assert without_system({"loss": 1, "system/cpu_percent": 2, "systematic": 3}) == {"loss": 1, "systematic": 3}
