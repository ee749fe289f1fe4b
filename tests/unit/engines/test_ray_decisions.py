"""What the Ray engine concludes from Ray's tables and what it asks Ray for: pure, without a cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from pydantic import ValidationError

from windlass.agent.remedy import NODE
from windlass.core.exits import ExitReason
from windlass.core.resources import Node, NodeShare, Placement
from windlass.engines.contract import Launch, NodeReport, Notice
from windlass.engines.ray.inventory import render_inventory
from windlass.engines.ray.lives import RETURN_S, SILENT_S, decide_lives
from windlass.engines.ray.requests import GroupRequest, actor_name, group_name, prefix, render_request
from windlass.engines.ray.tables import RayActor, RayGroup, RayNode, Tables, node_names
from windlass.engines.remote.bootstrap import render_bootstrap
from windlass.engines.remote.observing import Life, NodeLife
from windlass.scheduling.core.decide import decide
from windlass.scheduling.core.types import NodeState, Policy, Running, Snapshot, Waiting, Want
from windlass.wire.ray import RayConfig, RayOptions

GROUP = group_name(prefix("windlass", "ray"), "r-1.1")
NOW = 1000.0
LONG_AGO = 0.0


def node(name: str = "n1", *, id: str = "", available: Mapping[str, float] | None = None, **changes: object) -> RayNode:
    total = {"CPU": 8.0, "GPU": 4.0, "memory": 64e9, f"node:{name}": 1.0}
    found = RayNode(id=id or f"id-{name}", name=name, total=total, available=available or total, labels={})
    return replace(found, **changes)  # type: ignore[arg-type]


def actor(rank: int = 0, state: str = "ALIVE", *, node_id: str = "id-n1", **changes: object) -> RayActor:
    found = RayActor(name=actor_name(GROUP, rank), state=state, node_id=node_id)
    return replace(found, **changes)  # type: ignore[arg-type]


def group(*bundles: tuple[str, dict[str, float]], state: str = "CREATED") -> RayGroup:
    return RayGroup(name=GROUP, state=state, bundles=bundles)


def tables(
    *nodes: RayNode,
    groups: tuple[RayGroup, ...] = (),
    actors: tuple[RayActor, ...] = (),
    followed: tuple[str, ...] = (GROUP,),
) -> Tables:
    return Tables(
        nodes=nodes or (node(),),
        groups={found.name: found for found in groups},
        actors={found.name: found for found in actors},
        followed=followed,
    )


# ---- nodes ---------------------------------------------------------------------------------------------------------


def test_tables_survive_their_journey() -> None:
    found = tables(node(), groups=(group(("id-n1", {"CPU": 1.0})),), actors=(actor(),))
    assert Tables.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_node_offers_what_is_free_and_what_is_ours() -> None:
    found = tables(
        node(available={"CPU": 3.0, "GPU": 1.0, "memory": 10e9}),
        groups=(group(("id-n1", {"CPU": 2.0, "GPU": 1.0}), ("id-n2", {"CPU": 4.0})),),
    )
    assert render_inventory("ray", found) == (
        Node(engine="ray", name="n1", cpus=5.0, memory_bytes=10_000_000_000, gpus=2),
    )


def test_a_group_that_is_only_asked_for_holds_nothing() -> None:
    found = tables(node(), groups=(group(("", {"CPU": 2.0}), state="PENDING"),))
    assert [offer.cpus for offer in render_inventory("ray", found)] == [8.0]


def test_no_more_is_offered_than_there_is() -> None:
    found = tables(node(), groups=(group(("id-n1", {"CPU": 2.0})),))
    assert [offer.cpus for offer in render_inventory("ray", found)] == [8.0]


def test_gpus_beyond_those_offered_count_as_held() -> None:
    """Ours has index 3 of four; then others took two. One is free, whatever its number."""
    found = tables(
        node(available={"CPU": 6.0, "GPU": 1.0}),
        groups=(group(("id-n1", {"CPU": 1.0, "GPU": 1.0})),),
    )
    (offered,) = render_inventory("ray", found)
    assert offered.gpus == 2
    share = NodeShare(node="n1", cpus=1.0, memory_bytes=0, gpu_indices=(3,))
    want = Want(cpus=1.0, gpus=1)
    held = Running(run_id="r-a", project="p", want=want, placement=Placement(engine="ray", shares=(share,)))
    there = NodeState(engine="ray", name="n1", cpus=offered.cpus, memory_bytes=offered.memory_bytes, gpus=offered.gpus)
    waiting = tuple(Waiting(run_id=f"r-{name}", project="p", wants=(want,)) for name in "bc")
    decided = decide(Snapshot(nodes=(there,), running=(held,), waiting=waiting), Policy(preempts=False), 1.0)
    assert [start.run_id for start in decided.starts] == ["r-b"]


def test_dead_drained_and_taken_nodes_offer_nothing() -> None:
    found = tables(node("a", alive=False), node("b", draining=True), node("c", available={"GPU": 4.0}), node("d"))
    assert [offer.name for offer in render_inventory("ray", found)] == ["d"]


@pytest.mark.parametrize(
    "found",
    [
        node(total={"CPU": 1.0, "GPU": 1.0, "accelerator_type:H100": 1.0}, available={"CPU": 1.0, "GPU": 1.0}),
        node(labels={"ray.io/accelerator-type": "H100"}),
    ],
)
def test_the_type_of_gpus_is_known(found: RayNode) -> None:
    assert render_inventory("ray", tables(found))[0].gpu_type == "h100"


@pytest.mark.parametrize(
    ("total", "labels", "offer"),
    [
        ({"TPU": 4.0, "accelerator_type:TPU-V5E": 1.0}, {}, (4, "tpu:v5e")),
        ({"TPU": 4.0}, {"ray.io/accelerator-type": "TPU-V4"}, (4, "tpu:v4")),
        ({"TPU": 4.0}, {}, (4, "tpu:")),
        ({"TPU": 4.0, "GPU": 2.0}, {}, (2, None)),
        ({}, {"ray.io/accelerator-type": "TPU-V4"}, (0, None)),
    ],
)
def test_tpus_are_offered_by_nodes_without_gpus(
    total: dict[str, float], labels: dict[str, str], offer: tuple[int, str | None]
) -> None:
    amounts = {"CPU": 8.0, **total}
    [found] = render_inventory("ray", tables(node(total=amounts, available=amounts, labels=labels)))
    assert (found.gpus, found.gpu_type) == offer


def test_tpus_that_are_ours_are_offered_still() -> None:
    total = {"CPU": 8.0, "TPU": 4.0}
    there = node(total=total, available={"CPU": 7.0, "TPU": 1.0})
    [found] = render_inventory("ray", tables(there, groups=(group(("id-n1", {"CPU": 1.0, "TPU": 2.0})),)))
    assert (found.cpus, found.gpus) == (8.0, 3)


def test_nodes_of_one_name_are_told_apart_and_the_dead_take_no_name() -> None:
    found = tables(
        node("a", id="0123456789"), node("a", id="abcdefghij"), node("b", id="1"), node("b", id="2", alive=False)
    )
    assert node_names(found) == {"0123456789": "a-01234567", "abcdefghij": "a-abcdefgh", "1": "b", "2": "b"}


# ---- lives ---------------------------------------------------------------------------------------------------------


def lives(
    *reports: NodeReport, found: Tables | None, asked: bool = False, listening_since: float = LONG_AGO
) -> list[NodeLife] | None:
    return decide_lives(reports, found, group=GROUP, asked=asked, listening_since=listening_since, now=NOW)


def life(report: NodeReport, found: Tables | None, **options: float) -> NodeLife:
    decided = lives(report, found=found, **options)  # type: ignore[arg-type]
    assert decided is not None
    return decided[0]


UNHEARD = NodeReport(node_rank=0)
TALKING = NodeReport(node_rank=0, reported_at=NOW - SILENT_S + 0.1)
SILENT = NodeReport(node_rank=0, reported_at=NOW - SILENT_S)


@pytest.mark.parametrize("report", [UNHEARD, TALKING, SILENT])
def test_nothing_is_concluded_while_ray_does_not_answer(report: NodeReport) -> None:
    assert life(report, None).life is Life.UNKNOWN


def test_nothing_is_concluded_from_a_missing_actor_that_ray_was_not_asked_about() -> None:
    assert life(SILENT, tables(followed=())).life is Life.UNKNOWN
    assert life(SILENT, tables(followed=(), actors=(actor(),))).life is Life.ALIVE


def test_what_ray_has_not_got_is_to_be_launched_unless_that_is_under_way() -> None:
    second = NodeReport(node_rank=1)
    assert lives(UNHEARD, second, found=tables(actors=(actor(0),))) is None
    decided = lives(UNHEARD, second, found=tables(actors=(actor(0),)), asked=True)
    assert decided is not None
    assert [found.life for found in decided] == [Life.ALIVE, Life.WAITING]


def test_what_has_ended_before_it_began_is_not_to_be_launched() -> None:
    assert lives(replace(UNHEARD, outcome={"reason": "cancelled"}), found=tables()) is not None


def test_a_gang_without_room_says_what_it_waits_for() -> None:
    found = tables(groups=(group(state="PENDING"),), actors=(actor(state="PENDING_CREATION", node_id=""),))
    assert life(UNHEARD, found).message == "waiting in Ray for its placement group (pending)"


def test_a_node_that_talks_lives_whatever_ray_says() -> None:
    for found in (tables(actors=(actor(state="DEAD"),)), tables()):
        assert life(TALKING, found).life is Life.ALIVE
        assert life(SILENT, found).life is Life.GONE


def test_silence_counts_only_while_somebody_listens() -> None:
    silence_s = NOW - RETURN_S - SILENT_S
    assert life(SILENT, tables(), listening_since=silence_s + 0.1).life is Life.ALIVE
    assert life(SILENT, tables(), listening_since=silence_s).life is Life.GONE


def test_a_dead_node_is_named() -> None:
    found = tables(node(alive=False), actors=(actor(state="DEAD", death="health check failed", ended_at=990.0),))
    message = "node n1 is gone: health check failed"
    assert life(SILENT, found) == NodeLife(life=Life.GONE, at=990.0, message=message, trouble=NODE)


def test_one_report_that_did_not_come_is_no_silence() -> None:
    """With many nodes each is told to report every ten seconds."""
    found = tables(actors=(actor(state="DEAD"),))
    rare = replace(SILENT, beat_s=10.0, reported_at=NOW - 25.0)
    assert life(rare, found).life is Life.ALIVE
    assert life(replace(rare, reported_at=NOW - 30.0), found).life is Life.GONE


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        ("actor_died_error", ExitReason.LOST),
        ("runtime_env_failed", ExitReason.LAUNCH_FAILED),
        ("oom", ExitReason.OOM),
        ("autoscaler_drain_preempted", ExitReason.PREEMPTED),
    ],
)
def test_deaths_are_translated(cause: str, reason: ExitReason) -> None:
    assert life(UNHEARD, tables(actors=(actor(state="DEAD", cause=cause),))).reason is reason


def test_a_draining_node_gives_notice() -> None:
    found = tables(node(draining=True, drain_deadline=1100.0), actors=(actor(),))
    assert life(TALKING, found).notice == Notice(message="Ray drains node n1", deadline=1100.0)


# ---- requests ------------------------------------------------------------------------------------------------------


def test_a_launch_becomes_a_group_and_its_actors() -> None:
    shares = (
        NodeShare(node="n1", cpus=2.0, memory_bytes=10**9, gpu_indices=(0, 3)),
        NodeShare(node="n2", cpus=0.5, memory_bytes=0),
    )
    launch = Launch(
        run_id="r-1",
        attempt_id="r-1.1",
        attempt=1,
        placement=Placement(engine="ray", shares=shares),
        argv=("true",),
        workers_per_node=1,
        self_launching=False,
        env={},
    )
    on_tpus = replace(launch, tpus=True)
    bundles = render_request(on_tpus, group=GROUP, options=RayOptions(), server_url="http://s", tokens=["t0", "t1"])
    assert [actor.bundle for actor in bundles.actors] == [{"CPU": 2.0, "TPU": 2.0, "memory": 1e9}, {"CPU": 0.5}]
    options = RayOptions(resources={"license": 1}, runtime_env={"pip": ["numpy"]})
    request = render_request(launch, group=GROUP, options=options, server_url="http://s", tokens=["t0", "t1"])
    assert GroupRequest.from_json(json.loads(json.dumps(request.to_json()))) == request
    assert "t0" not in repr(request)
    told = {"WINDLASS_SERVER": "http://s", "WINDLASS_NODE_ATTEMPT": "r-1.1"}
    assert request.to_json() == {
        "name": "windlass:ray:r-1.1",
        "program": render_bootstrap(),
        "runtime_env": {"pip": ["numpy"]},
        "actors": (
            {
                "name": "windlass:ray:r-1.1:0",
                "node": "n1",
                "bundle": {"CPU": 2.0, "GPU": 2.0, "memory": 1e9, "license": 1.0},
                "environ": {**told, "WINDLASS_NODE_RANK": "0", "WINDLASS_NODE_TOKEN": "t0"},
            },
            {
                "name": "windlass:ray:r-1.1:1",
                "node": "n2",
                "bundle": {"CPU": 0.5, "license": 1.0},
                "environ": {**told, "WINDLASS_NODE_RANK": "1", "WINDLASS_NODE_TOKEN": "t1"},
            },
        ),
    }


@pytest.mark.parametrize("resources", [{"CPU": 1}, {"memory": 1}, {"license": 0}])
def test_resources_that_are_asked_for_elsewhere_are_refused(resources: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        RayOptions(resources=resources)


def test_an_engine_needs_an_address() -> None:
    with pytest.raises(ValidationError):
        RayConfig(type="ray")  # type: ignore[call-arg]
