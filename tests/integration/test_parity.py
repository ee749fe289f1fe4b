"""Training under plans against one process, with real processes: a part of `python -m windlass.job.parity`."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from windlass.core.plan import parse_plan
from windlass.job.parity.__main__ import check_parity
from windlass.job.parity.cases import Case, cases_for
from windlass.job.parity.verdict import Row, judge, render_row, render_summary
from windlass.job.parity.workers import run_cases

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600), pytest.mark.xdist_group("parity")]

STEPS = 12

# One of each kind, and one of every product of two.
TWO = (
    "data=2",
    "shard=2,zero=1,accumulate=2",
    "shard=2,zero=2,accumulate=2",
    "shard=2,zero=3,accumulate=2,clip=0.5",
    "tensor=2,sequence=true",
    "pipeline=2,schedule=interleaved,accumulate=2",
    "data=2,compress=topk",
)
FOUR = (
    "data=2,shard=2,accumulate=2",
    "data=2,pipeline=2,accumulate=2,activation_checkpoint=full",
    "tensor=2,pipeline=2,accumulate=2,clip=0.5",
)


def cases(texts: tuple[str, ...], world_size: int) -> list[Case]:
    return [Case(plan=parse_plan(text).sized(world_size)) for text in texts]


def test_plans_learn_as_one_process_does() -> None:
    """One test, though it shows several things: the processes that it takes are started once."""
    asked = {2: cases(TWO, 2), 4: cases(FOUR, 4)}
    found = check_parity(asked, STEPS, lambda row: print(render_row(row)))
    assert all(row.agrees for row in found), render_summary(found)
    rows = dict(zip([*TWO, *FOUR], found, strict=True))
    check_that_zero_stages_divide_what_they_say(rows)
    check_that_bytes_sent_are_those_of_the_plan(rows)


def check_that_zero_stages_divide_what_they_say(rows: dict[str, Row]) -> None:
    whole = rows["data=2"].footprint
    one, two, three = (rows[plan].footprint for plan in TWO[1:4])
    half = pytest.approx(0.5, abs=0.06)
    # Optimizer state, then gradients, then parameters; those are whole only a block at a time.
    assert [f["state"] / whole["state"] for f in (one, two, three)] == [half, half, half]
    assert [f["gradients"] / whole["gradients"] for f in (one, two, three)] == [pytest.approx(1.0), half, half]
    assert one["parameters"] == two["parameters"] > whole["parameters"] > 1.4 * three["parameters"]
    assert one["peak"] > three["peak"]


def check_that_bytes_sent_are_those_of_the_plan(rows: dict[str, Row]) -> None:
    gradients = rows["data=2"].footprint["gradients"]
    # Of an all-reduce between two, each sends as much as there is; and a little for the mean loss.
    assert rows["data=2"].footprint["sent"] == pytest.approx(gradients, rel=0.01)
    # A gather and a scatter are halves of it; zero=3 gathers again for every microbatch and backward.
    assert rows["shard=2,zero=1,accumulate=2"].footprint["sent"] == pytest.approx(gradients, rel=0.01)
    assert rows["shard=2,zero=2,accumulate=2"].footprint["sent"] == pytest.approx(1.5 * gradients, rel=0.01)
    assert rows["shard=2,zero=3,accumulate=2,clip=0.5"].footprint["sent"] > 2.5 * gradients
    assert rows["data=2,compress=topk"].footprint["sent"] < 0.05 * gradients


def test_mistakes_are_noticed() -> None:
    """Negative controls: gradients that are summed instead of averaged, and gradients that are never exchanged."""
    plan = parse_plan("data=2")
    faulty = [Case(plan=plan, fault=fault) for fault in ("summed", "unsynchronised")]
    found = check_parity({2: faulty}, STEPS, lambda row: print(render_row(row)))
    assert [row.agrees for row in found] == [False, False]
    assert all(row.error is None and row.difference > 100 * row.bound for row in found), render_summary(found)


def test_a_plan_that_fails_says_why_and_the_next_one_is_tried() -> None:
    broken = Case(plan=parse_plan("data=2"), fault="no such fault")
    fine = Case(plan=parse_plan("data=2"))
    first, second = run_cases([broken, fine], 2, 4)
    assert first.error is not None
    assert "KeyError: 'no such fault'" in first.error
    assert second.error is None
    assert len(second.losses) == 4 + 1  # and one evaluation


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("world_size", "one_in"), [(1, 1), (2, 1), (4, 2), (8, 5)])
def test_every_plan(world_size: int, one_in: int) -> None:
    """Of many processes some plans only: on two cores each of them takes long. `python -m windlass.job.parity` has
    them all, and twice as many steps."""
    some = cases_for(world_size)[::one_in]
    found = check_parity({world_size: some}, 10, lambda row: print(render_row(row), flush=True))
    assert all(row.agrees for row in found), render_summary(found)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_compiled_blocks_learn_the_same() -> None:
    """Apart from the others: the first use of the compiler takes a minute and more."""
    texts = ("data=2,compile=true", "shard=2,compile=true,activation_checkpoint=selective")
    outcomes = [*run_cases(cases(texts, 2), 2, STEPS, timeout_s=900)]
    (alone,) = run_cases([Case(plan=parse_plan("data=1"))], 1, STEPS)
    for outcome in outcomes:
        row = judge(outcome, alone.losses, 2)
        assert row.agrees, row.error or render_row(row)
