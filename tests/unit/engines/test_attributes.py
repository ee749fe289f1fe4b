"""What labels say about nodes, and that every engine says it."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.engines.attributes import is_spot, labels_of, topology_of
from windlass.engines.kubernetes.nodes import decide_inventory, parse_node
from windlass.engines.local.machine import Machine
from windlass.engines.ray.inventory import render_inventory
from windlass.engines.ray.tables import RayNode, Tables

ZONE, RACK = "topology.kubernetes.io/zone", "example.com/rack"


@pytest.mark.parametrize(
    ("labels", "spot"),
    [
        ({"cloud.google.com/gke-spot": "true"}, True),
        ({"eks.amazonaws.com/capacityType": "SPOT"}, True),
        ({"eks.amazonaws.com/capacityType": "ON_DEMAND"}, False),
        ({"karpenter.sh/capacity-type": "spot"}, True),
        ({"kubernetes.azure.com/scalesetpriority": "spot"}, True),
        ({"ray.io/market-type": "spot"}, True),
        ({"ray.io/market-type": "on-demand"}, False),
        ({}, False),
    ],
)
def test_clouds_mark_nodes_that_they_may_take_back(labels: dict[str, str], spot: bool) -> None:
    assert is_spot(labels) is spot


def test_a_place_is_known_as_far_as_its_labels_go() -> None:
    assert topology_of({ZONE: "eu-1a", RACK: "r1"}, (ZONE, RACK)) == ("eu-1a", "r1")
    assert topology_of({ZONE: "eu-1a"}, (ZONE, RACK)) == ("eu-1a",)
    assert topology_of({RACK: "r1"}, (ZONE, RACK)) == ()


def test_names_of_nodes_are_no_labels() -> None:
    assert labels_of({"kubernetes.io/hostname": "a", "pool": "big"}) == {"pool=big"}


def test_nodes_of_kubernetes() -> None:
    labels = {ZONE: "eu-1a", RACK: "r1", "karpenter.sh/capacity-type": "spot", "node.kubernetes.io/instance-type": "p5"}
    seen: dict[str, Any] = {
        "metadata": {"name": "n1", "labels": labels},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "4", "memory": "8Gi"}},
    }
    [node] = decide_inventory(
        [parse_node(seen)],
        [],
        engine="k",
        selector={},
        tolerated=(),
        gpu_resource="nvidia.com/gpu",
        gpu_type_label="nvidia.com/gpu.product",
        topology_labels=(ZONE, RACK),
        prices={"p5": 98.3},
    )
    assert (node.topology, node.spot, node.price_per_hour) == (("eu-1a", "r1"), True, 98.3)
    assert node.labels == {f"{key}={value}" for key, value in labels.items()}


@pytest.mark.parametrize(
    ("allocatable", "offer"),
    [
        ({"google.com/tpu": "4"}, (4, "tpu:v5e", ("eu-1a", "slice-7"))),
        ({"google.com/tpu": "0"}, (0, None, ("eu-1a", "slice-7"))),
        ({"nvidia.com/gpu": "8"}, (8, "H100", ("eu-1a",))),
        ({"nvidia.com/gpu": "8", "google.com/tpu": "4"}, (8, "H100", ("eu-1a",))),
        ({}, (0, None, ("eu-1a",))),
    ],
)
def test_tpus_of_kubernetes(allocatable: dict[str, str], offer: tuple[int, str | None, tuple[str, ...]]) -> None:
    labels = {
        ZONE: "eu-1a",
        "nvidia.com/gpu.product": "H100",
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-nodepool": "slice-7",
    }
    seen: dict[str, Any] = {
        "metadata": {"name": "n1", "labels": labels},
        "spec": {"taints": [{"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "4", **allocatable}},
    }
    [node] = decide_inventory(
        [parse_node(seen)],
        [],
        engine="k",
        selector={},
        tolerated=(),
        gpu_resource="nvidia.com/gpu",
        gpu_type_label="nvidia.com/gpu.product",
        topology_labels=(ZONE,),
    )
    assert (node.gpus, node.gpu_type, node.topology) == offer


def test_nodes_of_ray() -> None:
    labels = {"ray.io/availability-zone": "us-1a", "ray.io/market-type": "spot", "ray.io/node-id": "abc"}
    raylet = RayNode(id="abc", name="n1", total={"CPU": 4.0}, available={"CPU": 4.0}, labels=labels)
    [node] = render_inventory("r", Tables(nodes=(raylet,), groups={}, actors={}))
    assert (node.topology, node.spot) == (("us-1a",), True)
    assert node.labels == {"ray.io/availability-zone=us-1a", "ray.io/market-type=spot"}


@pytest.mark.parametrize(
    ("prices", "price"),
    [
        ({"ray.io/node-group=h100": 31.2, "w*": 1.0}, 31.2),
        ({"w*": 1.0, "ray.io/node-group=h100": 31.2}, 1.0),
        ({"p5": 98.3}, 98.3),
        ({"ray.io/node-group=a100": 9.0, "W1": 2.0}, 0.0),
    ],
)
def test_prices_of_nodes_of_ray_are_by_labels_resources_and_names(prices: dict[str, float], price: float) -> None:
    amounts = {"CPU": 4.0, "p5": 1.0}
    raylet = RayNode(id="abc", name="w1", total=amounts, available=amounts, labels={"ray.io/node-group": "h100"})
    tables = Tables(nodes=(raylet,), groups={}, actors={})
    [node] = render_inventory("r", tables, prices=prices, spot_nodes=("ray.io/node-group=h100",))
    assert (node.price_per_hour, node.spot) == (price, True)


def test_nodes_of_this_machine_share_its_price() -> None:
    machine = Machine(cpus=8, memory_bytes=1, nodes=2, labels={"room": "lab"}, price_per_hour=3.0, spot=True)
    found = [(node.labels, node.price_per_hour, node.spot) for node in machine.inventory()]
    assert found == [({"room=lab"}, 1.5, True)] * 2
