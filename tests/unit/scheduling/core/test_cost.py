"""That a pass looks at what differs, not at what there is. Times are measured by `bench/schedule.py`."""

from __future__ import annotations

import time

import pytest

from tests.unit.scheduling.core.clusters import node, policy, running, share, snapshot, waiting, want
from windlass.scheduling.core.decide import decide
from windlass.scheduling.core.pool import Pool
from windlass.scheduling.core.shapes import Form
from windlass.scheduling.core.types import Snapshot


def crowded(count: int) -> Snapshot:
    """1,250 nodes, one GPU of each tenth free, and runs of 12 shapes from 20 projects."""
    nodes = [node(f"n{at:04}", topology=(f"rack{at // 64}", f"switch{at // 16}")) for at in range(1250)]
    held = [running(f"r{at:04}", share(f"n{at:04}", gpus=8 if at % 10 else 7), project="p0") for at in range(1250)]
    shapes = [want(gpus=gpus, cpus=cpus) for gpus in (1, 2, 4, 8) for cpus in (1, 2, 3)]
    runs = [waiting(f"w{at:05}", shapes[at % 12], project=f"p{at * 7 % 20}", queued_at=at) for at in range(count)]
    return snapshot(runs, nodes, running=held)


@pytest.mark.parametrize("count", [1000, 10_000])
def test_room_is_looked_for_once_for_each_shape_that_has_none(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    find = Pool.find

    def counted(pool: Pool, form: Form, most: int) -> list[int] | None:
        nonlocal looks
        looks += 1
        return find(pool, form, most)

    monkeypatch.setattr(Pool, "find", counted)
    found = decide(crowded(count), policy(preempts=False), 1e5)
    assert len(found.starts) == 125
    assert looks <= 125 + 12


def test_ten_thousand_wait_and_a_pass_is_quick() -> None:
    """It takes well under 100 ms; the bound leaves room for a machine that is busy with other things."""
    crowd = crowded(10_000)
    began = time.process_time()
    decide(crowd, policy(), 1e5)
    assert time.process_time() - began < 2.0
