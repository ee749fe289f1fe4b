"""The order that needs no durations: what it says of nothing, and what it learns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.resources import NodeShare, Placement
from windlass.scheduling.core import index
from windlass.scheduling.core.learned import COUNT, EDGES, FIRST_S, History, Lasted, Learned, step_of
from windlass.scheduling.core.types import Running, Waiting, Want

HOUR = 3600.0


def ended(
    history: History, seconds: float, *, gpus: float = 1, project: str = "a", user: str = "", times: int = 1
) -> None:
    for _ in range(times):
        history.add(Lasted(gpus=gpus, project=project, user=user, seconds=seconds))


def waiting(run_id: str = "r", *, gpus: float = 1, served: float = 0.0, project: str = "a") -> Waiting:
    return Waiting(run_id=run_id, project=project, wants=(Want(gpus=gpus),), served=served)


@given(st.floats(min_value=FIRST_S, max_value=1e7), st.floats(min_value=FIRST_S, max_value=1e7))
def test_who_has_had_less_comes_first_while_nothing_is_known(one: float, other: float) -> None:
    less, more = sorted((one, other))
    learned = Learned()
    assert learned.rank(1, "a", "", less) <= learned.rank(1, "a", "", more) * (1 + 1e-9)


def test_the_wider_of_two_that_are_else_alike_comes_later() -> None:
    assert index.rank(waiting(gpus=8), None, 0.0) == pytest.approx(8 * index.rank(waiting(gpus=1), None, 0.0))


def test_a_project_whose_runs_are_short_comes_before_one_whose_runs_are_long() -> None:
    history = History()
    ended(history, 60, project="short", times=50)
    ended(history, 50 * HOUR, project="long", times=50)
    learned = history.learn()
    assert index.rank(waiting(project="short"), learned, 0.0) < index.rank(waiting(project="long"), learned, 0.0) / 10


def test_what_is_about_to_end_comes_before_what_has_just_begun() -> None:
    """Least attained service would have it the other way round, and let long runs take turns."""
    history = History()
    ended(history, 100 * HOUR, times=200)
    learned = history.learn()
    assert learned.rank(1, "a", "", 80 * HOUR) < learned.rank(1, "a", "", 1 * HOUR)


def test_a_new_kind_is_ranked_as_the_kinds_above_it() -> None:
    history = History()
    ended(history, 60, project="a", times=50)
    learned = history.learn()
    assert learned.rank(1, "new", "", 0) == pytest.approx(learned.rank(1, "a", "", 0), rel=0.01)
    assert learned.rank(1, "new", "new", 0) == learned.rank(1, "new", "", 0)


def test_runs_that_go_on_tell_that_runs_last() -> None:
    history = History()
    ended(history, 60, times=5)
    before = history.learn().rank(1, "a", "", 2 * HOUR)
    going = [Lasted(gpus=1, project="a", seconds=500 * HOUR)] * 20
    assert history.learn(going).rank(1, "a", "", 2 * HOUR) > before


def test_learning_again_does_not_change_what_was_learned() -> None:
    history = History()
    ended(history, 60, times=5)
    learned = history.learn()
    ended(history, 50 * HOUR, times=500)
    assert learned.rank(1, "a", "", 0) == Learned(ended=learned._ended).rank(1, "a", "", 0)
    assert history.learn().rank(1, "a", "", 0) > learned.rank(1, "a", "", 0)


def test_coming_back_is_part_of_the_price() -> None:
    learned = Learned()
    placement = Placement(engine="e", shares=(NodeShare(node="n", cpus=1, memory_bytes=0, gpu_indices=(0, 1)),))
    running = Running(run_id="r", project="a", want=Want(gpus=2), placement=placement, started_at=0.0)
    stopped = waiting(gpus=2, served=running.attained(900.0))
    more = index.rank(stopped, learned, 900.0) - index.rank(running, learned, 900.0)
    assert more == pytest.approx(2 * index.RESTART_S)


def test_runs_without_gpus_have_a_rank_too() -> None:
    assert index.rank(Waiting(run_id="r", project="a", wants=(Want(cpus=4),)), None, 0.0) > 0
    assert index.rank(Waiting(run_id="r", project="a", wants=(Want(cpus=0),)), None, 0.0) > 0


@given(st.floats(min_value=0, max_value=1e10))
def test_every_time_is_in_a_step(seconds: float) -> None:
    step = step_of(seconds)
    assert 0 <= step < COUNT
    assert EDGES[step] <= seconds * (1 + 1e-9)


@given(st.lists(st.tuples(st.floats(0, 1e7), st.sampled_from([0.25, 1, 3, 8, 64])), max_size=60), st.floats(0, 1e8))
def test_ranks_are_positive_and_finite_whatever_happened(runs: list[tuple[float, float]], age: float) -> None:
    history = History()
    for seconds, gpus in runs:
        ended(history, seconds, gpus=gpus)
    assert 0 < history.learn().rank(8, "a", "u", age) < float("inf")


def test_chances_fall_with_time() -> None:
    history = History()
    ended(history, 5 * HOUR, times=100)
    learned = history.learn()
    lasts = [learned.lasts(1, "a", "", HOUR, chance) for chance in (0.1, 0.5, 0.9)]
    assert lasts == sorted(lasts)
    assert lasts[0] >= HOUR
    assert lasts[-1] < 10 * HOUR
