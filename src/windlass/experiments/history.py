"""Points of metrics as MLflow's clients ask for them. Short histories are thinned out evenly by their number, as
MLflow's own server does it; of long ones every stretch keeps its least and greatest value.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import NamedTuple

from sqlalchemy import Connection, select

from windlass.core.errors import InvalidInput
from windlass.tracking.blocks import NO_STEP
from windlass.tracking.series import Reading, load_history, load_points, load_sampled
from windlass.tracking.tables import summaries

# Clients ask for 25,000 and go on from there. Each point takes about a kilobyte on its way out.
MOST_IN_PAGE = 100_000
PAGE = 25_000
_SHORT = 10_000  # points


class HistoryPoint(NamedTuple):
    run_id: str
    key: str
    value: float
    at_ms: int
    step: int


def load_page(
    tx: Connection, run_id: str, key: str, *, most: int | None, token: str | None
) -> tuple[list[HistoryPoint], str | None]:
    """In the order of time, step and value. `most` is what the client wants: it gets no more than goes in one answer,
    and the token of what follows. Who wants everything puts pages together."""
    most = min(most or PAGE, MOST_IN_PAGE)
    after, passed = _reading_of(token) if token else (None, 0)
    found = load_history(tx, run_id, key, limit=most + 1, after=after, passed=passed)
    page = found[:most]
    following = _token_after(page, after, passed) if len(found) > most else None
    return [_point(run_id, key, reading) for reading in page], following


def _token_after(page: Sequence[Reading], before: Reading | None, passed: int) -> str:
    """The last point of the page, and how many that are just like it have been told by now: a job may have logged it
    more than once."""
    last = page[-1]
    alike = sum(1 for _ in takewhile(lambda one: _is_same(one, last), reversed(page)))
    if alike == len(page) and before is not None and _is_same(before, last):
        alike += passed
    return base64.b64encode(json.dumps({"after": [*last, alike]}).encode()).decode()


def _is_same(one: Reading, other: Reading) -> bool:
    return one[:2] == other[:2] and one.value.hex() == other.value.hex()  # NaN is itself, and -0.0 is not 0.0


def _reading_of(token: str) -> tuple[Reading, int]:
    """Raises InvalidInput for a token that we cannot have given."""
    try:
        step, at, value, *alike = json.loads(base64.b64decode(token, validate=True))["after"]
        [passed] = alike or [1]  # the version before does not say it
    except (binascii.Error, ValueError, KeyError, TypeError, RecursionError):
        raise InvalidInput(f"Invalid page token: {token}") from None
    is_step = step is None or (type(step) is int and -(2**63) <= step < 2**63)
    if not is_step or type(at) is not float or type(value) is not float or type(passed) is not int or passed < 1:
        raise InvalidInput(f"Invalid page token: {token}")
    return Reading(step, at, value), passed


def load_bulk(tx: Connection, run_ids: Sequence[str], key: str, *, most: int) -> list[HistoryPoint]:
    """In the order of the runs' ids; `most` of all of them together."""
    found: list[HistoryPoint] = []
    for run_id in sorted(set(run_ids)):
        if len(found) < most:
            some = load_history(tx, run_id, key, limit=most - len(found))
            found += [_point(run_id, key, reading) for reading in some]
    return found


def load_many(tx: Connection, run_id: str, keys: Sequence[str]) -> dict[str, list[HistoryPoint]]:
    """All points of the first of these metrics: of as many as go in one answer together, which may be none."""
    named = (summaries.c.run_id == run_id, summaries.c.name.in_(list(keys)))
    rows = tx.execute(select(summaries.c.name, summaries.c.points).where(*named))
    counts: dict[str, int] = {row.name: row.points for row in rows}
    sizes = accumulate(counts.get(key, 0) for key in keys)
    chosen = [key for key, size in zip(keys, sizes, strict=True) if size <= MOST_IN_PAGE]
    return {
        key: [
            HistoryPoint(run_id, key, value, round(at * 1000), 0 if step == NO_STEP else step)
            for step, at, value in zip(*column, strict=True)
        ]
        for key, column in load_points(tx, run_id, chosen).items()
    }


def load_interval(
    tx: Connection, run_ids: Sequence[str], key: str, *, steps: tuple[int, int] | None, most: int
) -> list[HistoryPoint]:
    """At most `most` of each run, the last one among them, in the order of step, time and value."""
    counts = dict(
        tx.execute(
            select(summaries.c.run_id, summaries.c.points).where(
                summaries.c.run_id.in_(list(run_ids)), summaries.c.name == key
            )
        )
        .tuples()
        .all()
    )
    found: list[HistoryPoint] = []
    for run_id in run_ids:
        if counts.get(run_id, 0) > max(_SHORT, most):
            some = load_sampled(tx, [run_id], key, steps=steps, most=most).get(run_id, [])
        else:
            some = thinned(_within(load_history(tx, run_id, key), steps), most)
        found += [_point(run_id, key, reading) for reading in some]
    return found


def thinned(readings: Sequence[Reading], most: int) -> list[Reading]:
    """The first of each of `most` parts of as equal a number as can be, and the last of all."""
    if len(readings) <= most:
        return list(readings)
    size, larger = divmod(len(readings), most)
    picked = [readings[part * size + min(part, larger)] for part in range(most)]
    return [*picked[:-1], readings[-1]]


def _within(readings: Sequence[Reading], steps: tuple[int, int] | None) -> list[Reading]:
    low, high = steps or (-math.inf, math.inf)
    wanted = [one for one in readings if low <= (one.step or 0) <= high]
    return sorted(wanted, key=lambda one: (one.step or 0, one.at))


def _point(run_id: str, key: str, reading: Reading) -> HistoryPoint:
    return HistoryPoint(run_id, key, reading.value, round(reading.at * 1000), reading.step or 0)
