"""How far a rank says it is in its output."""

from __future__ import annotations

import pytest

from windlass.agent.printed import Printed


def read(printed: Printed, out: bytes = b"", err: bytes = b"", now: float = 0.0) -> tuple[int, int] | None:
    place = printed.read({"out": out, "err": err}, now)
    return None if place is None else (place.step, place.total)


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
        (b"Writing model shards: 100%|###| 1/1 [00:00<00:00, 1212.93it/s]\n", None),
        (b"Epoch 1/1\n", (1, 1)),
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
    assert read(Printed(), text) == found


def test_bars_go_to_the_other_stream() -> None:
    assert read(Printed(), b"epoch 1/3\n", b" 40/100 [00:01<00:02") == (40, 100)


def test_the_end_of_long_output_is_enough() -> None:
    assert read(Printed(), b"step 1/9\n" + b"x" * 10_000) is None
    assert read(Printed(), b"x" * 10_000 + b"\nstep 8/9\n") == (8, 9)


def test_a_bar_that_was_not_seen_at_its_end_gives_way_to_the_next() -> None:
    printed = Printed()
    assert read(printed, err=b"Map: 40%|#| 400/1000 [00:01<00:01", now=1) == (400, 1000)
    assert read(printed, err=b"1000/1000 [00:02<00:00\n 3/5000 [00:01<", now=3) == (400, 1000)
    assert read(printed, err=b"1000/1000 [00:02<00:00\n 9/5000 [00:02<", now=5) == (9, 5000)


def test_a_short_evaluation_is_not_shown() -> None:
    printed = Printed()
    assert read(printed, err=b"50/100 [00:01<", now=1) == (50, 100)
    assert read(printed, err=b"50/100 [00:01<00:01\n 5/20 [00:01<", now=3) == (50, 100)
    assert read(printed, err=b"5/20 [00:01<00:01\n 51/100 [00:02<", now=5) == (51, 100)


@pytest.mark.parametrize("said", ["step %d/5000\n", "Epoch %d/300\n"])
def test_old_text_of_the_other_stream_does_not_count(said: str) -> None:
    printed, old = Printed(), b"Map: 100%|##| 1000/1000 [00:01<00:00\n"
    read(printed, err=old, now=1)
    for number in (11, 12, 13):
        found = read(printed, (said % number).encode(), old, now=number)
    assert found == (13, int(said.split("/")[1]))


def test_steps_of_an_epoch_are_shown_and_not_the_epoch() -> None:
    printed = Printed()
    text = b""
    for epoch in (1, 2, 3):
        text += b"Epoch %d/3\n" % epoch
        for step in (50, 100):
            text += b"step %d/100\n" % step
            assert read(printed, text, now=epoch * 1000 + step) == (step, 100)


def test_a_place_has_the_time_it_was_first_seen_at() -> None:
    printed = Printed()
    for now in (1.0, 2.0):
        place = printed.read({"out": b"step 3/9\n"}, now)
    assert place is not None
    assert place.at == 1.0
