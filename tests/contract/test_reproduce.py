"""The same run again, on each kind of database, and what of it the record pins."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.test_store_runs import advance, load, submit
from windlass.core.resources import Node, NodeShare, Placement
from windlass.db.database import Database
from windlass.runs import store
from windlass.runs.service import RunService
from windlass.runs.types import EventKind
from windlass.scheduling.nodes import commit_nodes
from windlass.wire import runs as wire


def pins(service: RunService, run_id: str) -> dict[str, wire.Pin]:
    return {pin.what: pin for pin in service.reproduce(run_id, wire.ReproduceRequest(), user=None).pins}


def begun(service: RunService, database: Database, placement: Placement, **spec: Any) -> str:
    nodes = [
        Node(engine="fake", name=f"n{number}", cpus=8, memory_bytes=10**9, gpus=4, gpu_type="h100")
        for number in range(4)
    ]
    with database.write() as tx:
        commit_nodes(tx, "fake", nodes, now=0)
    run_id = submit(service, **spec).id
    with database.write() as tx:
        attempt_id = store.insert_attempt(tx, load(database, run_id), placement, now=1.0)
        store.update_attempt(tx, attempt_id, started_at=2.0)
    advance(database, run_id, EventKind.PLACED, attempt_count=1)
    return run_id


def shares(*nodes: str, gpus: int = 0) -> Placement:
    return Placement(
        engine="fake",
        shares=tuple(NodeShare(node=node, cpus=1, memory_bytes=0, gpu_indices=tuple(range(gpus))) for node in nodes),
    )


def test_a_copy_has_the_same_spec_and_seed(service: RunService, database: Database) -> None:
    first = submit(service, params={"lr": 0.1}, tags={"a": "b"})
    copy = service.reproduce(first.id, wire.ReproduceRequest(name="again"), user=None).run
    was, now = load(database, first.id), load(database, copy.id)
    assert (now.seed, now.argv, now.spec.params, now.clone_of) == (was.seed, was.argv, was.spec.params, first.id)
    assert now.name == "again"


def test_what_is_open_is_said(service: RunService) -> None:
    found = pins(service, submit(service).id)
    assert [what for what, pin in found.items() if pin.pinned] == ["command", "seed"]
    assert "no snapshot" in found["code"].how
    assert "not recorded" in found["data"].how


@pytest.mark.parametrize(("image", "pinned"), [("team/train:latest", False), ("team/train@sha256:" + "0" * 64, True)])
def test_an_image_pins_packages_by_its_digest_only(service: RunService, image: str, pinned: bool) -> None:
    assert pins(service, submit(service, image=image).id)["packages"].pinned is pinned


def test_what_the_spec_leaves_open_is_what_the_run_had(service: RunService, database: Database) -> None:
    run_id = begun(
        service,
        database,
        shares("n0", "n1", "n2", gpus=3),
        elastic={"min_nodes": 2, "max_nodes": 4},
        resources={"gpus": "2..4", "gpu_type": "h100"},
    )
    found = service.reproduce(run_id, wire.ReproduceRequest(), user=None)
    copy = load(database, found.run.id).spec
    assert (copy.elastic, copy.resources.nodes, copy.resources.gpus, copy.resources.min_gpus) == (None, 3, 3, None)
    assert next(pin for pin in found.pins if pin.what == "hardware").pinned


def test_what_is_open_can_be_asked_for_without_a_new_run(service: RunService) -> None:
    run_id = submit(service).id
    told = service.pins(run_id).pins
    assert len(service.page().runs) == 1
    assert told == service.reproduce(run_id, wire.ReproduceRequest(), user=None).pins
