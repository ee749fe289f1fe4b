"""How far a rank says it is in its output."""

from __future__ import annotations

import pytest

from windlass.agent.printed import find_progress


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"step 12/100: loss 0.3\n", (12, 100)),
        (b"Step: 12 / 100\n", (12, 100)),
        (b"[Step 12 of 100] loss 3\n", (12, 100)),
        (b"iter 0012/0100 | lr 3e-4\n", (12, 100)),
        (b"Iteration [5/20]\n", (5, 20)),
        (b"Epoch 3/10\n", (3, 10)),
        (b"Epoch 3/10, step 40/200\n", (40, 200)),
        (b"Epoch 3/10\nstep 1/200\nstep 2/200\nEpoch 4/10\n", (2, 200)),
        (b" 12%|#2        | 12/100 [00:05<00:37,  2.35it/s]\r 13%|#3      | 13/100 [00:05<00:36", (13, 100)),
        (b"step 12\n", None),
        (b"2026/11/16 loss 0.5\n", None),
        (b"wrote /data/12/100 [ok]\n", None),
        (b"step 101/100\n", None),
        (b"step 1/2.5\n", None),
        (b"step 0/0\n", None),
        (b"misstep 1/2\n", None),
        (b"", None),
    ],
)
def test_lines_that_say_both_numbers(text: bytes, found: tuple[int, int] | None) -> None:
    assert find_progress(text) == found


def test_bars_go_to_the_other_stream() -> None:
    assert find_progress(b"epoch 1/3\n", b" 40/100 [00:01<00:02") == (40, 100)


def test_the_end_of_long_output_is_enough() -> None:
    assert find_progress(b"step 1/9\n" + b"x" * 10_000) is None
    assert find_progress(b"x" * 10_000 + b"\nstep 8/9\n") == (8, 9)
