"""A real Slurm whose nodes are in a tree of switches: the inventory shows it, and gangs stay within a switch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import skip_unless_ci
from tests.integration.slurm_runs import SlurmRuns
from windlass.core.exits import ExitReason
from windlass.core.resources import Node, Resources
from windlass.scheduling.core.decide import decide
from windlass.scheduling.core.types import NodeState, Policy, Snapshot, Waiting
from windlass.scheduling.wants import wants_of
from windlass.testing.slurm import SlurmCluster, SlurmUnavailable, running_slurm

pytestmark = pytest.mark.slurm

# Neighbours by name are on different switches: only who knows the tree finds two on one.
SWITCHES = ["SwitchName=leaf1 Nodes=n[1,4]", "SwitchName=leaf2 Nodes=n[2-3]", "SwitchName=spine Switches=leaf[1-2]"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    try:
        with running_slurm(nodes=4, switches=SWITCHES) as cluster:
            yield cluster
    except SlurmUnavailable as reason:
        skip_unless_ci("Slurm", reason)


def test_a_gang_is_placed_within_a_switch(cluster: SlurmCluster, tmp_path: Path) -> None:
    runs = SlurmRuns(cluster, tmp_path, node_prices={"n4": 9.0, "n*": 3.0})
    try:
        offered = runs.engine.inventory()
        assert {node.name: node.topology for node in offered} == {
            "n1": ("spine", "leaf1"),
            "n2": ("spine", "leaf2"),
            "n3": ("spine", "leaf2"),
            "n4": ("spine", "leaf1"),
        }
        assert {node.name: node.price_per_hour for node in offered} == {"n1": 3.0, "n2": 3.0, "n3": 3.0, "n4": 9.0}

        wants = wants_of(Resources(nodes=2, cpus=1.0), engines=None)
        there = Snapshot(
            nodes=tuple(_state(node) for node in offered), waiting=(Waiting(run_id="r", project="p", wants=wants),)
        )
        [start] = decide(there, Policy(), 0.0).starts
        chosen = sorted(share.node for share in start.placement.shares)
        assert chosen in (["n1", "n4"], ["n2", "n3"])
        ended = runs.wait(runs.shell("true", nodes=tuple(chosen)))
        assert ended.exit is not None
        assert ended.exit.reason is ExitReason.COMPLETED
    finally:
        runs.clean_up()


def test_features_that_say_it_come_before_switches(cluster: SlurmCluster, tmp_path: Path) -> None:
    runs = SlurmRuns(cluster, tmp_path, topology_features=("rack",))
    try:
        assert {node.topology for node in runs.engine.inventory()} == {()}
    finally:
        runs.clean_up()


def _state(node: Node) -> NodeState:
    return NodeState(**{field: getattr(node, field) for field in Node.__slots__})
