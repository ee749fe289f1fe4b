"""Which tails become one, and which become chunks."""

from __future__ import annotations

from array import array

from windlass.tracking.columns import Column
from windlass.tracking.compaction import (
    ENOUGH,
    FULL,
    MANY,
    Compaction,
    Deed,
    Head,
    Tail,
    decide_compaction,
    decide_fillings,
    pieces,
)


def tails(count: int, *, points: int = 20, metrics: int = 20, size: int = 500, start: int = 1) -> list[Tail]:
    return [Tail(id=start + n, points=points, metrics=metrics, size=size) for n in range(count)]


def column(*steps: int) -> Column:
    return Column(array("q", steps), array("d", [float(step) for step in steps]), array("d", [0.0] * len(steps)))


def head(seq: int, first: int, last: int, points: int = 100, *, thinned: bool = False) -> Head:
    return Head(seq=seq, points=points, first=(first, float(first)), last=(last, float(last)), thinned=thinned)


def test_a_few_tails_are_left_alone() -> None:
    assert decide_compaction([], settled=0) is None
    assert decide_compaction(tails(MANY - 1), settled=0) is None


def test_many_small_tails_become_one_and_larger_ones_wait_for_their_like() -> None:
    large = tails(3, points=5_000)
    assert decide_compaction(large + tails(MANY - 1, start=10), settled=0) is None
    assert decide_compaction(large + tails(MANY, start=10), settled=0) == Compaction(
        deed=Deed.MERGE, tail_ids=tuple(range(10, 10 + MANY))
    )


def test_chunks_are_made_once_there_is_enough_of_every_metric() -> None:
    each = 20 * ENOUGH // 2
    assert decide_compaction(tails(1, points=each), settled=0) is None
    assert decide_compaction(tails(2, points=each), settled=0) == Compaction(deed=Deed.CHUNK, tail_ids=(1, 2))


def test_a_run_that_logs_no_more_gets_chunks_of_what_there_is() -> None:
    assert decide_compaction(tails(3), settled=2) is None
    assert decide_compaction(tails(3), settled=3) == Compaction(deed=Deed.CHUNK, tail_ids=(1, 2, 3))


def test_no_more_is_taken_at_once_than_memory_bears() -> None:
    found = decide_compaction(tails(100, points=200_000, metrics=10_000), settled=0)
    assert found == Compaction(deed=Deed.CHUNK, tail_ids=tuple(range(1, 11)))
    one = decide_compaction(tails(1, points=10**8, metrics=10_000, size=10**9), settled=0)
    assert one == Compaction(deed=Deed.CHUNK, tail_ids=(1,))


def filled(heads: list[Head], *steps: int) -> list[tuple[int | None, list[int]]]:
    return [(filling.chunk, list(filling.points.steps)) for filling in decide_fillings(heads, column(*steps))]


def test_points_go_to_the_chunk_of_their_stretch() -> None:
    heads = [head(0, 0, 99), head(1, 100, 199), head(5, 300, 399)]
    assert filled([], 1, 2) == [(None, [1, 2])]
    assert filled(heads, -5, 7, 150, 250, 350, 400) == [(0, [-5, 7]), (1, [150, 250]), (5, [350, 400])]


def test_a_full_chunk_is_opened_for_what_belongs_into_it_alone() -> None:
    heads = [head(0, 0, 99, points=FULL), head(1, 100, 199, points=FULL)]
    assert filled(heads, 200, 201) == [(None, [200, 201])]
    assert filled(heads, 50, 200) == [(0, [50]), (None, [200])]


def test_what_was_thinned_is_never_opened() -> None:
    assert filled([head(0, 0, 99, thinned=True)], 50) == [(None, [50])]
    assert filled([head(0, 0, 99, thinned=True), head(1, 100, 199)], 50) == [(1, [50])]


def test_pieces_are_full_but_the_last() -> None:
    assert [len(piece.steps) for piece in pieces(column(*range(2 * FULL + 1)))] == [FULL, FULL, 1]
