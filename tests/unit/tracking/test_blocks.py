"""Points that are given by columns become the blocks that they become one by one."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from windlass.tracking.blocks import Logged, blocks_of_columns, blocks_of_logged

POINTS = st.lists(
    st.builds(
        Logged, st.sampled_from("abc"), st.integers(0, 9).map(float), st.sampled_from([1.0, 2.0]), st.integers(0, 2)
    ),
    min_size=1,
    max_size=12,
)


def grid(names: str, steps: int) -> list[Logged]:
    return [Logged(name, step + 0.5, 1.0 + step, step) for step in range(steps) for name in names]


@given(points=POINTS)
@example(points=grid("abc", 4))
@example(points=grid("abc", 4)[:-1])
@example(points=grid("a", 100))
@example(points=grid("ab", 100))
@example(points=[*grid("ab", 2), Logged("b", 1.0, 9.0, 9), Logged("a", 1.0, 9.0, 9)])
@example(points=[Logged("a", 1.0, 1.0, 1), Logged("b", 1.0, 2.0, 1)])
@example(points=[Logged("a", 1.0, 1.0, 1), Logged("b", 1.0, 1.0, 2)])
@example(points=[Logged("a", 1.0, 1.0, 1), Logged("b", 2.0, 1.0, 1)] * 2)
def test_columns_of_points_make_the_same_blocks(points: list[Logged]) -> None:
    names, values, ats, steps = zip(*points, strict=True)
    assert blocks_of_columns(names, values, ats, steps) == blocks_of_logged(points)
