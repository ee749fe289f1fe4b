from __future__ import annotations

from windlass.experiments.history import thinned
from windlass.experiments.matching import glob_of
from windlass.tracking.series import Reading


def steps(count: int, most: int) -> list[int | None]:
    return [one.step for one in thinned([Reading(step, 0.0, 0.0) for step in range(count)], most)]


def test_what_is_short_stays_whole() -> None:
    assert steps(5, 5) == [0, 1, 2, 3, 4]
    assert steps(0, 5) == []


def test_the_first_of_every_part_and_the_last_of_all_are_kept() -> None:
    assert steps(10, 5) == [0, 2, 4, 6, 9]
    assert steps(20, 5) == [0, 4, 8, 12, 19]
    assert steps(7, 3) == [0, 3, 6]
    assert steps(10, 1) == [9]


def test_patterns_mean_the_same_to_glob() -> None:
    assert glob_of("a%b_c*d?e[f]") == "a*b?c[*]d[?]e[[]f]"
