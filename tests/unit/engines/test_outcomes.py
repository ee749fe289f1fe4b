from __future__ import annotations

from typing import Any

from windlass.agent import outcome
from windlass.agent.remedy import NODE
from windlass.core.exits import ExitReason
from windlass.engines.contract import StopKind
from windlass.engines.outcomes import StopRest, decide_rest, exit_of


def ended(reason: str, *, at: float = 10.0, rank: int | None = None, about_peers: bool = False) -> dict[str, Any]:
    return outcome.summary(
        reason=reason, message=f"{reason} of {rank}", started_at=1.0, ended_at=at, rank=rank, about_peers=about_peers,
        traceback="Traceback" if rank is not None else None, ranks=[{"rank": rank, "ended_at": at}],
    )  # fmt: skip


def test_a_node_with_trouble_of_its_own_explains_the_end_though_another_was_quicker() -> None:
    found = exit_of([ended("exit_code", at=10.0, rank=0, about_peers=True), ended("exit_code", at=12.0, rank=1)])
    assert (found.rank, found.traceback) == (1, "Traceback")
    alone = exit_of([ended("exit_code", rank=0, about_peers=True), ended("cancelled")])
    assert alone.rank == 0


def test_a_lost_node_comes_before_all_that_failed_for_want_of_it() -> None:
    found = exit_of([ended("exit_code", at=9.0, rank=0), ended("lost", at=20.0)])
    assert found.reason is ExitReason.LOST


def test_the_node_to_blame_is_named_where_that_is_known() -> None:
    assert exit_of([ended("exit_code", at=9.0, rank=0), ended("lost", at=20.0)]).node_rank == 1
    together = [ended("lost", at=20.0), ended("lost", at=20.0)]
    assert exit_of(together).node_rank is None
    down = {**ended("lost", at=20.0), "trouble": NODE}
    assert (exit_of([*together, down]).node_rank, exit_of([*together, down]).trouble) == (2, NODE)
    assert exit_of([ended("completed"), ended("completed")]).node_rank is None


def test_the_outcome_of_an_older_agent_is_understood() -> None:
    old = {key: value for key, value in ended("exit_code", rank=2).items() if key not in ("about_peers", "traceback")}
    assert (exit_of([old]).rank, exit_of([old]).traceback) == (2, None)


def test_the_rest_stops_when_a_node_has_failed() -> None:
    found = decide_rest([ended("exit_code", rank=0), None], ["stopping", "running"])
    assert found == StopRest(kind=StopKind.CANCELLED, reason="stopped because another node failed: exit_code of 0")


def test_the_rest_stops_as_completed_when_it_only_serves() -> None:
    done = StopRest(kind=StopKind.COMPLETED, reason="")
    assert decide_rest([ended("completed"), None], ["running", "serving"]) == done
    assert decide_rest([None, None], ["serving", "serving"]) == done
    assert decide_rest([ended("completed"), None], ["running", "running"]) is None
    assert decide_rest([None, None], ["running", "serving"]) is None
    assert decide_rest([None, None], [None, "serving"]) is None
    assert decide_rest([ended("completed"), ended("completed")], [None, None]) is None


def test_the_rest_stops_with_the_node_that_it_served() -> None:
    """It was told to stop from outside, alone: nobody else would ever tell those that only serve."""
    found = decide_rest([ended("preempted"), ended("completed"), None], [None, "running", "serving"])
    assert found == StopRest(kind=StopKind.PREEMPTED, reason="stopped with another node: preempted of None")
    assert decide_rest([ended("preempted"), None, None], [None, "running", "serving"]) is None
