"""Why a run waits: the sentence and what comes with it, from small clusters in which one thing is in the way."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.scheduling.core.clusters import node, running, share, snapshot, waiting, want
from tests.unit.scheduling.core.strategies import WORLDS, draw_arrival
from tests.unit.scheduling.core.worlds import World
from windlass.core.resources import NodeShare
from windlass.scheduling.core.decide import decide
from windlass.scheduling.core.learned import History, Lasted
from windlass.scheduling.core.types import Health, NodeState, Policy, Project, Running, Snapshot, Waiting, Want
from windlass.scheduling.explain import Beside, Explanation, explain_waiting, reason_in_short
from windlass.scheduling.outlook import Obstacle, Outlook
from windlass.scheduling.shares import shares_of
from windlass.scheduling.types import Aside

NOW = 100_000.0
MINUTE, HOUR = 60.0, 3600.0
NAMES = Beside(names={"r-1": "big", "r-2": "small", "w-2": "other"})


def look(there: Snapshot, *, now: float = NOW, **more: Any) -> Outlook:
    policy = Policy(**{"preempts": False, **more})
    return Outlook(there, policy, decide(there, policy, now), now)


def explain(there: Snapshot, run_id: str = "w", *, beside: Beside = NAMES, **more: Any) -> Explanation:
    found = explain_waiting(look(there, **more), run_id, beside)
    assert found is not None
    return found


def short(there: Snapshot, run_id: str = "w", **more: Any) -> str:
    outlook = look(there, **more)
    return reason_in_short(outlook.hindrance(outlook.waiting[run_id]), NAMES)


def h100s(*names: str, **more: Any) -> list[NodeState]:
    return [node(name, gpu_type="h100", **more) for name in names]


def h100(gpus: float, **more: Any) -> Want:
    return want(gpus=gpus, gpu_type="h100", **more)


def held(run_id: str, *shares: NodeShare, **more: Any) -> Running:
    return running(run_id, *shares, wants=h100(len(shares[0].gpu_indices), nodes=len(shares)), **more)


def cpus(run_id: str, **more: Any) -> Waiting:
    return waiting(run_id, want(gpus=0, cpus=4), **more)


def test_on_one_machine_it_is_said_simply() -> None:
    busy = running("r-1", share("a", cpus=6), started_at=NOW - 120)
    queue = [cpus("first", queued_at=1), cpus("second", queued_at=2)]
    there = snapshot(queue, [node("a", gpus=0, cpus=8)], running=[busy])
    first, second = explain(there, "first"), explain(there, "second")
    assert first.summary == "waits for 4 CPU: not free now"
    assert first.details == ("node a lacks 4 CPU (2 of 8 free)", "big (r-1) holds 6 CPU")
    assert second.summary == "waits for 4 CPU: not free now; 1 run is ahead of it"
    assert (first.position, second.position) == (1, 2)


def test_what_borrows_what_it_saved_and_when_it_ends() -> None:
    there = snapshot(
        [waiting(run_id, h100(8), project="nlp", queued_at=at) for at, run_id in enumerate(["w-2", "w-3", "w"])],
        h100s("a", "b"),
        running=[
            held(
                "r-1",
                share("a", gpus=8),
                project="vision",
                started_at=NOW - HOUR,
                saved_at=NOW - 3 * MINUTE,
                ends_at=NOW + 40 * MINUTE,
            ),
            held("r-2", share("b", gpus=4), project="vision", started_at=NOW - HOUR, ends_at=NOW + 9 * HOUR),
        ],
        projects=[Project(name="nlp", quota={"gpu": 8})],
    )
    found = explain(there)
    assert found.summary == (
        "waits for 4 more h100 on one node: project vision borrows 12, its run big (r-1) checkpointed 3 min ago and "
        "ends in about 40 min; 2 runs are ahead of it"
    )
    assert found.position == 3
    assert "project vision holds 12 h100, 12 of them borrowed: big (r-1) 8, small (r-2) 4" in found.details
    assert "ahead of it: other (w-2), w-3" in found.details
    assert "project nlp has 0% of the cluster now and had 0% lately" in found.details


def test_without_quotas_nobody_borrows() -> None:
    there = snapshot(
        [waiting("w", h100(8), project="nlp")],
        h100s("a", "b"),
        running=[held(run_id, share(at, gpus=8), project="vision", started_at=NOW - HOUR)
                 for run_id, at in (("r-1", "a"), ("r-2", "b"))],
    )  # fmt: skip
    assert explain(there).summary == (
        "waits for 8 h100: project vision holds 16 GPUs, its run big (r-1) has run for 60 min"
    )


def test_the_quota_of_its_own_project_is_in_use() -> None:
    there = snapshot(
        [waiting("w", h100(8), project="nlp")],
        h100s("a"),
        running=[held("r-1", share("a", gpus=8), project="nlp", started_at=NOW - 600)],
        projects=[Project(name="nlp", quota={"gpu": 8})],
    )
    found = explain(there)
    assert found.summary == (
        "waits for 8 h100: its own project, nlp, holds 8 GPUs, its run big (r-1) has run for 10 min"
    )
    assert (
        "its project's quota of 8 GPUs is in use: what is beyond is borrowed, and comes after what quotas cover"
        in found.details
    )


def test_a_gang_is_told_how_many_nodes_are_missing_and_which_are_kept() -> None:
    there = snapshot(
        [waiting("w", h100(8, nodes=2))],
        h100s("a", "b", "c"),
        running=[
            held("r-1", share("a", gpus=8), started_at=NOW - 300),
            held("r-2", share("b", gpus=2), started_at=NOW - 600, ends_at=NOW + 6 * HOUR),
        ],
    )
    found = explain(there)
    assert found.summary == "waits for 1 more node of 8 h100: big (r-1) has run for 5 min"
    assert found.details[0] == "2 nodes are kept for it from about 03:51 UTC: c, a"
    assert short(there) == "next in line for 2 nodes of 8 h100"


def test_tpus_are_called_by_their_name() -> None:
    def tpus(amount: float) -> Want:
        return want(gpus=amount, gpu_type="tpu:v5e")

    there = snapshot(
        [waiting("w", tpus(4))],
        [node("t", gpus=4, gpu_type="tpu:v5e"), *h100s("a")],
        running=[running("r-1", share("t", gpus=2), wants=tpus(2), started_at=NOW - 300, project="q")],
        projects=[Project(name="p", limit={"tpu": 3})],
    )
    assert explain(there).summary == "waits: with 4 TPU v5e more project p would pass its limit of 3 TPUs"
    there = replace(there, projects=())
    told = "waits for 2 more TPU v5e: project q holds 2 TPUs, its run big (r-1) has run for 5 min"
    assert explain(there).summary == told
    assert short(there) == "next in line for 4 TPU v5e"


def test_several_have_to_end() -> None:
    there = snapshot(
        [waiting("w", h100(8, nodes=2))],
        h100s("a", "b"),
        running=[
            held("r-1", share("a", gpus=8), started_at=NOW - 300, ends_at=NOW + 20 * MINUTE),
            held("r-2", share("b", gpus=8), started_at=NOW - 600, ends_at=NOW + 2 * HOUR),
        ],
    )
    found = explain(there)
    assert found.summary == (
        "waits for 2 nodes of 8 h100: 2 runs have to end, the last, small (r-2), ends in about 2 h"
    )
    assert "have to end first: small (r-2), which ends in about 2 h; big (r-1), which ends in about 20 min" in (
        found.details
    )


def test_how_long_such_runs_last_tells_when_one_ends() -> None:
    history = History()
    for _ in range(1000):
        history.add(Lasted(gpus=8, project="p", user="", seconds=2 * HOUR))
    busy = [held("r-1", share("a", gpus=8), started_at=NOW - HOUR), held("r-2", share("b", gpus=8), started_at=NOW)]
    there = Snapshot(
        nodes=tuple(h100s("a", "b")),
        running=tuple(busy),
        waiting=(waiting("w", h100(8)),),
        learned=history.learn(),
    )
    words = explain(there).summary
    assert re.fullmatch(r"waits for 8 h100: (big|small) \(r-[12]\) ends in about [\d.]+ (min|h)", words)


def test_limits() -> None:
    busy = [held("r-1", share("a", gpus=8), project="vision", user="ada"),
            held("r-2", share("b", gpus=4), project="vision", user="ada")]  # fmt: skip

    def there(limit: dict[str, float]) -> Snapshot:
        projects = [Project(name="lab", limit=limit), Project(name="vision", parent="lab")]
        queue = [waiting("w", h100(8), project="vision", user="ada")]
        return snapshot(queue, h100s("a", "b", "c"), running=busy, projects=projects)

    found = explain(there({"gpu": 12}))
    assert found.summary == "waits: project lab is at its limit of 12 GPUs"
    assert "project lab holds 12 GPUs: big (r-1), small (r-2)" in found.details
    assert short(there({"gpu": 12})) == "project lab: limit of 12 GPUs"
    assert explain(there({"gpu": 16})).summary == (
        "waits: with 8 h100 more project lab would pass its limit of 16 GPUs"
    )
    assert explain(there({"runs": 2})).summary == "waits: project lab is at its limit of 2 runs"
    by_user = explain(there({}), user_limit={"gpu": 12})
    assert by_user.summary == "waits: ada is at the limit of 12 GPUs for each user"
    assert "ada holds 12 GPUs: big (r-1), small (r-2)" in by_user.details
    assert short(there({}), user_limit={"gpu": 12}) == "ada: limit of 12 GPUs"


def test_a_limit_of_one_type_holds_for_runs_that_name_none() -> None:
    busy = [held("r-1", share("a", gpus=8), user="ada")]
    there = snapshot([waiting("w", want(gpus=8), user="ada")], h100s("a", "b"), running=busy)
    limited = snapshot(
        [waiting("w", want(gpus=8))], h100s("a", "b"), running=busy, projects=[Project(name="p", limit={"gpu:h100": 8})]
    )
    assert explain(limited).summary == "waits: project p is at its limit of 8 h100"
    assert explain(there, user_limit={"gpu:h100": 8}).summary == "waits: ada is at the limit of 8 h100 for each user"


def test_what_starts_now_counts_for_the_limit_of_the_next() -> None:
    queue = [waiting("w-2", h100(8), queued_at=1), waiting("w", h100(8), queued_at=2)]
    there = snapshot(queue, h100s("a", "b"), projects=[Project(name="p", limit={"gpu": 8})])
    assert explain(there, "w-2").summary == "is about to start"
    assert explain(there).summary == "waits: project p is at its limit of 8 GPUs"


def test_nodes_that_are_set_aside() -> None:
    drained = Aside(reason="new memory", since=0, until=None, by_hand=True)
    broken = Aside(reason="uncorrectable ECC error", since=0, until=1800.0)
    nodes = [*h100s("a"), *h100s("b", health=Health.CLOSED), *h100s("c", health=Health.DOUBTED)]
    beside = Beside(aside={("x", "b"): drained, ("x", "c"): broken})
    found = explain(snapshot([waiting("w", h100(8, nodes=3))], nodes), beside=beside)
    assert found.summary == "waits for 3 nodes of 8 h100: no such nodes are there now"
    assert "node b is set aside until somebody gives it back: new memory" in found.details
    busy = held("r-1", share("a", gpus=8), started_at=NOW - 60)
    found = explain(snapshot([waiting("w", h100(8))], nodes, running=[busy]), beside=beside)
    assert found.summary == "waits for 8 h100: not free now"
    assert "node c is set aside until 1970-01-01 00:30 UTC: uncorrectable ECC error" in found.details


def test_engines_that_cannot_be_reached() -> None:
    there = snapshot([waiting("w", h100(8, engines=frozenset({"y"})))], h100s("a"))
    found = explain(there, beside=Beside(away={"y": "connection refused", "z": "no route"}))
    assert found.summary == "waits for 8 h100: no such nodes are there now"
    assert found.details == ("engine y cannot be reached: connection refused",)
    assert short(there) == "no such nodes are there now"


def test_without_nodes_a_run_waits_for_an_engine() -> None:
    assert explain(snapshot([waiting("w")], [])).summary == "waits for an engine: no nodes are known yet"
    assert short(snapshot([waiting("w")], [])) == "no nodes are known"


def test_room_that_is_kept_for_another() -> None:
    there = snapshot(
        [waiting("w-2", h100(8, nodes=2), priority=5), waiting("w", h100(8))],
        h100s("a", "b"),
        running=[held("r-1", share("a", gpus=8), started_at=NOW - 300)],
    )
    found = explain(there)
    assert found.summary == "would have room, but that is kept for other (w-2), which starts in about 5 min"
    assert found.details[0] == "room on b, a is kept for other (w-2), which starts at about 03:51 UTC"
    assert short(there) == "room is kept for other"


def test_room_that_is_being_made() -> None:
    busy = [
        held("r-1", share("a", gpus=8), started_at=NOW - 3000),
        held("r-2", share("b", gpus=8), started_at=NOW - 900),
    ]
    urgent = waiting("w", h100(8), priority=10)
    found = explain(snapshot([urgent], h100s("a", "b"), running=busy), preempts=True)
    assert found.summary == "starts soon: small (r-2) makes room for it"
    warned = [busy[0], held("r-2", share("b", gpus=8), started_at=NOW - 900, stopping=True)]
    there = snapshot([urgent], h100s("a", "b"), running=warned)
    assert explain(there).summary == "starts soon: small (r-2) makes room for it"
    assert short(there) == "its room is about to be free"


def test_room_that_comes_by_itself() -> None:
    there = snapshot([waiting("w", h100(8))], h100s("a"), running=[
        held("r-1", share("a", gpus=8), started_at=NOW - 3000, ends_at=NOW + 5)])  # fmt: skip
    assert explain(there).summary == "starts soon: what it needs is about to be free"


def test_whom_it_has_precedence_over_is_left_alone_for_a_while() -> None:
    busy = held("r-1", share("a", gpus=8), started_at=NOW - 30)
    there = snapshot([waiting("w", h100(8), priority=10)], h100s("a"), running=[busy])
    said = "it has precedence over big (r-1), which has just started: that is left alone until 03:51 UTC"
    assert said in explain(there, preempts=True).details
    assert said not in explain(there, preempts=False).details


def test_its_turn() -> None:
    there = snapshot([waiting("w-2", h100(8, nodes=2), priority=5), waiting("w", h100(4))], h100s("a", "b"),
                     running=[held("r-1", share("a", gpus=1), started_at=NOW - 60)])  # fmt: skip
    found = explain(there, backfill=False, reservations=0)
    assert found.summary == "waits its turn: 1 run is ahead, first other (w-2)"


def test_alternatives_elastic_runs_and_parts_of_gpus() -> None:
    nodes = [*h100s("a"), node("b", gpu_type="a100")]
    busy = [held("r-1", share("a", gpus=1), started_at=NOW - 60), running("r-2", share("b", gpus=8))]
    found = explain(snapshot([waiting("w", h100(8), want(gpus=8, gpu_type="a100"))], nodes, running=busy))
    assert found.details[0] == "it would also take 8 a100"
    elastic = waiting("w", want(gpus=0, cpus=8, nodes=2, most_nodes=4))
    found = explain(snapshot([elastic], [node("a", gpus=0, cpus=8)]))
    assert found.summary == "waits for 2 to 4 nodes of 8 CPU: no such nodes are there now"
    assert found.details[0] == "it begins with 2 of them or more, and takes up to 4"
    part = waiting("w", want(gpus=0.5))
    found = explain(snapshot([part], h100s("a", gpus=1), running=[held("r-1", share("a", gpus=1))]))
    assert found.summary == "waits for 0.5 GPU: not free now"


def test_a_run_with_gpus_may_lack_cpus() -> None:
    there = snapshot([waiting("w", h100(2, cpus=40))], h100s("a"), running=[
        held("r-1", share("a", gpus=1, cpus=50), started_at=NOW - 60)])  # fmt: skip
    found = explain(there)
    assert found.summary == "waits for 40 CPU beside 2 h100: not free now"
    assert found.details == ("node a lacks 40 CPU (14 of 64 free)", "big (r-1) holds 50 CPU")


def test_of_many_nodes_not_each_is_listed() -> None:
    nodes = h100s(*(f"n{at:03}" for at in range(200)))
    busy = [held(f"b{at}", share(f"n{at:03}", gpus=5), project=f"p{at % 2}", started_at=NOW - 60 * at - 60)
            for at in range(200)]  # fmt: skip
    found = explain(snapshot([waiting("w", h100(8))], nodes, running=busy))
    assert "of 200 nodes that suit it 0 have room; of the others n000 has the most free: 3 GPU" in found.details
    assert "project p0 holds 500 h100: b0 5, b10 5, b100 5, b102 5 and 96 more" in found.details


def test_one_that_does_not_wait_is_not_explained() -> None:
    assert explain_waiting(look(snapshot([], h100s("a"))), "w", NAMES) is None


def test_shares_of_projects_follow_their_weights_level_by_level() -> None:
    projects = [Project(name="lab", weight=3), Project(name="vision", parent="lab", weight=1),
                Project(name="nlp", parent="lab", weight=2), Project(name="idle", weight=5)]  # fmt: skip
    queue = [waiting("w", h100(8), project="nlp"), waiting("w-2", h100(8), project="guest")]
    busy = [held("r-1", share("a", gpus=8), project="vision")]
    found = {each.name: each for each in shares_of(look(snapshot(queue, h100s("a"), running=busy, projects=projects)))}
    assert list(found) == ["guest", "idle", "lab", "nlp", "vision"]
    assert [round(each.due, 4) for each in found.values()] == [0.25, 0.0, 0.75, 0.5, 0.25]
    assert (found["lab"].gpus, found["lab"].held, found["lab"].running, found["lab"].waiting) == (8, 1.0, 1, 1)
    assert (found["nlp"].parent, found["lab"].parent) == ("lab", None)


@settings(max_examples=150, deadline=None)
@given(world=WORLDS, data=st.data())
def test_everyone_who_waits_has_a_reason_and_a_place_of_their_own(world: World, data: st.DataObject) -> None:
    for step in range(data.draw(st.integers(1, 3))):
        for at in range(data.draw(st.integers(0, 4))):
            world.submit(*draw_arrival(data, f"r{step}{at}"))
        world.step(data.draw(st.sampled_from([0.0, 50.0, 1000.0])))
    there = world.snapshot
    decisions = decide(there, world.policy, world.now)
    outlook = Outlook(there, world.policy, decisions, world.now)
    places = []
    for run in there.waiting:
        found = explain_waiting(outlook, run.run_id, NAMES)
        assert found is not None
        places.append(found.position)
        obstacle = outlook.hindrance(run).obstacle
        assert (obstacle is Obstacle.NONE) == (run.run_id in {start.run_id for start in decisions.starts})
        assert reason_in_short(outlook.hindrance(run), NAMES)
        if obstacle is Obstacle.ROOM:
            assert outlook.lack(run).nodes_with_room < max(want.nodes for want in run.wants) or run.wants[0].gpus % 1
    assert sorted(places) == list(range(1, len(there.waiting) + 1))
