"""Histories in pages: all of them, in order, at the cost of what is in a page."""

from __future__ import annotations

import base64
import itertools
import math
import random
from collections import namedtuple

import pytest

from tests.contract.metric_logging import compact, line, log, mark, new_run
from windlass.core.errors import InvalidInput
from windlass.db.database import Database
from windlass.experiments import history
from windlass.tracking import series
from windlass.tracking.blocks import Logged
from windlass.tracking.compaction import FULL, Deed
from windlass.tracking.series import (
    Reading,
    decide_openings,
    load_history,
)


def test_pages_of_a_history_are_all_of_it(database: Database) -> None:
    run_id, source = new_run(), random.Random(1)
    logged = line(3 * FULL)
    source.shuffle(logged)
    for start in range(0, len(logged), 2_000):
        log(database, run_id, logged[start : start + 2_000])
        if start % 4_000 == 0:
            compact(database, run_id, Deed.CHUNK)
    pages: list[Reading] = []
    with database.read() as tx:
        while page := load_history(tx, run_id, "loss", limit=1_000, after=pages[-1] if pages else None):
            assert len(page) <= 1_000
            pages += page
        whole = load_history(tx, run_id, "loss")
    assert pages == whole
    assert [one.step for one in whole] == list(range(3 * FULL))


def test_pages_go_on_after_the_last_point_whatever_comes_meanwhile(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MOST_IN_PAGE", 4)
    monkeypatch.setattr(history, "PAGE", 3)
    run_id, odd = new_run(), [math.nan, math.inf, -math.inf, -0.0, 0.0]
    log(database, run_id, [Logged("loss", value, 5.0, step) for value in odd for step in (None, 1)])
    log(database, run_id, line(5))
    compact(database, run_id, Deed.CHUNK)
    log(database, run_id, line(5, start=5))
    with database.read() as tx:
        whole = history.load_page(tx, run_id, "loss", most=4, token=None)[0]
        expected = [(one.at, mark(one.value)) for one in load_history(tx, run_id, "loss")]
    found: list[tuple[float, str]] = []
    token: str | None = None
    while token or not found:
        with database.read() as tx:
            # Who asks for everything, or for too much, gets as much as goes, and what follows by the token.
            page, token = history.load_page(tx, run_id, "loss", most=None if len(found) % 8 else 1_000, token=token)
        assert 0 < len(page) <= 4
        found += [(one.at_ms / 1000, mark(one.value)) for one in page]
        log(database, run_id, [Logged("loss", 1.0, float(len(found)) / 100, 0)])  # before all of them
    assert found == expected
    assert [mark(one.value) for one in whole] == [value for _, value in expected[:4]]


@pytest.mark.parametrize(
    "held", ["x", "1", '{"after": 1}', '{"after": [1, 2, 3]}', '{"after": [true, 1.0, 1.0]}', "[]"]
)
def test_tokens_of_others_are_refused(database: Database, held: str) -> None:
    with database.read() as tx, pytest.raises(InvalidInput, match="Invalid page token"):
        history.load_page(tx, new_run(), "loss", most=4, token=base64.b64encode(held.encode()).decode())


def late(count: int, *, share: float, seed: int = 3) -> list[Logged]:
    """Points of which some are of an earlier step than those before them, as when a run goes on from a checkpoint."""
    source = random.Random(seed)
    steps = [step if source.random() >= share else source.randrange(step + 1) for step in range(count)]
    return [Logged("loss", float(number), 1_000.0 + number / 100, step) for number, step in enumerate(steps)]


def test_a_page_of_points_that_came_late_costs_what_is_in_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, count = new_run(), 12 * FULL
    log(database, run_id, late(count, share=0.2))
    compact(database, run_id, Deed.CHUNK)
    log(database, run_id, late(100, share=0.2))  # once more what is there, and not packed yet
    with database.read() as tx:
        whole = load_history(tx, run_id, "loss")
    assert [one.value for one in whole] == [float(number) for number in range(count)]
    keys = itertools.count()
    key = series._key
    monkeypatch.setattr(series, "_key", lambda one: (next(keys), key(one))[1])
    found: list[Reading] = []
    while len(found) < count:
        before = next(keys)
        with database.read() as tx:
            page = load_history(tx, run_id, "loss", limit=FULL, after=found[-1] if found else None)
        assert len(page) == min(FULL, count - len(found))
        # Not those of all chunks before it, nor the same ones after each chunk anew.
        assert next(keys) - before < 4 * FULL
        found += page
    assert found == whole


def test_which_chunks_a_page_opens_is_known_before_any_is() -> None:
    Head = namedtuple("Head", "seq earliest latest")
    heads = [Head(0, 0.0, 9.0), Head(2, 8.0, 30.0), Head(1, 5.0, 40.0), Head(3, 31.0, 33.0)]

    def opened(after: Reading | None, *, whole: bool = False) -> list[tuple[list[int], float | None]]:
        return [([head.seq for head in some], to) for some, to in decide_openings(heads, after=after, whole=whole)]

    assert opened(None) == [([0], 5.0), ([1], 8.0), ([2], 31.0), ([3], None)]
    assert opened(Reading(1, 8.5, 0.0)) == [([0, 1, 2], 31.0), ([3], None)]
    assert opened(Reading(1, 30.5, 0.0)) == [([1], 31.0), ([3], None)]
    assert opened(Reading(1, 41.0, 0.0)) == []
    assert opened(None, whole=True) == [([0, 1, 2, 3], None)]
