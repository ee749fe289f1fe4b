"""Prometheus's text."""

from __future__ import annotations

import math

from windlass.core.exposition import Sample, counter, gauge, render


def test_families_are_told_with_help_and_type() -> None:
    text = render(
        [gauge("a", "What it is.", [Sample(1.5, {"x": "y"}), Sample(2)]), counter("b_total", "B.", [Sample(3)])]
    )
    assert text == (
        '# HELP a What it is.\n# TYPE a gauge\na{x="y"} 1.5\na 2\n'
        "# HELP b_total B.\n# TYPE b_total counter\nb_total 3\n"
    )


def test_a_family_without_samples_is_left_out() -> None:
    assert render([gauge("a", "A.", [])]) == "\n"


def test_labels_are_escaped() -> None:
    assert render([gauge("a", "A.", [Sample(1, {"n": 'say "hi"\\\n'})])]).splitlines()[-1] == r'a{n="say \"hi\"\\\n"} 1'


def test_numbers_that_are_none() -> None:
    shown = render([gauge("a", "A.", [Sample(math.nan), Sample(math.inf), Sample(-math.inf), Sample(1e300)])])
    assert [line.split()[1] for line in shown.splitlines()[2:]] == ["NaN", "+Inf", "-Inf", "1e+300"]
