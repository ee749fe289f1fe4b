"""Leaving the loop over `ckpt.steps` before its end: which step the state is of that is saved then."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.unit.job.checkpoint.meeting import Meeting, ThreadPeers  # noqa: E402
from windlass.core.manifest import SaveReason  # noqa: E402
from windlass.job.checkpoint.checkpoints import Checkpoints, checkpoints  # noqa: E402
from windlass.job.checkpoint.folder import list_saved  # noqa: E402

pytestmark = pytest.mark.torch


class Counting(nn.Module):
    """Its weight says how many updates it has had."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def updates(self) -> int:
        return round(-self.weight.item())


def opened(folder: Path, **options: Any) -> tuple[Checkpoints, Counting, torch.optim.Optimizer]:
    model = Counting()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return checkpoints(model=model, optimizer=optimizer, folder=folder, **{"every": 5, **options}), model, optimizer


def update(model: Counting, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model.weight.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def saved_in(folder: Path) -> tuple[int, int]:
    """The newest checkpoint's step, and the updates that are in it."""
    block, model, _ = opened(folder)
    with block as ckpt:
        return ckpt.first_step, model.updates()


def trained_until(folder: Path, last: int, *, is_updated: bool = True) -> None:
    """Breaks at the end of that step, or before its update."""
    block, model, optimizer = opened(folder)
    with block as ckpt:
        for step in ckpt.steps(20):
            if step < last or is_updated:
                update(model, optimizer)
            ckpt.wait()  # no save is left out
            if step == last:
                break


@pytest.mark.parametrize("last", [3, 4, 5])
def test_a_step_that_was_broken_off_at_its_end_is_done(last: int, tmp_path: Path) -> None:
    """At 4 one is due by the interval, and at 5 one was just saved."""
    trained_until(tmp_path, last)
    assert saved_in(tmp_path) == (last + 1, last + 1)
    assert list_saved(tmp_path)[0].manifest.reason is SaveReason.FINAL


@pytest.mark.parametrize("last", [3, 5])
def test_a_step_without_an_update_is_not_done(last: int, tmp_path: Path) -> None:
    trained_until(tmp_path, last, is_updated=False)
    assert saved_in(tmp_path) == (last, last)


def test_a_step_that_was_broken_off_goes_on_with_the_next_one(tmp_path: Path) -> None:
    for last in (2, 4):
        trained_until(tmp_path, last)
    block, model, optimizer = opened(tmp_path)
    with block as ckpt:
        for _ in ckpt.steps(20):
            update(model, optimizer)
    assert saved_in(tmp_path) == (20, 20)


def test_a_step_is_told_once_by_whoever_tells_it(tmp_path: Path) -> None:
    block, model, optimizer = opened(tmp_path)
    with block as ckpt:
        for step in ckpt.steps(20):
            update(model, optimizer)
            ckpt.step(step + 1, loss=0.5)
            if step == 6:
                break
    assert saved_in(tmp_path) == (7, 7)


def test_a_step_that_an_exception_has_broken_off_is_not_done(tmp_path: Path) -> None:
    block, model, optimizer = opened(tmp_path)
    with contextlib.suppress(KeyError), block as ckpt:
        for step in ckpt.steps(20):
            update(model, optimizer)
            ckpt.wait()
            if step == 6:
                raise KeyError
    assert saved_in(tmp_path) == (5, 5)


def test_a_rank_that_has_seen_no_update_goes_by_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = threading.local()
    monkeypatch.setattr("windlass.job.checkpoint.checkpoints.Peers", lambda: mine.peers)

    def alone(peers: ThreadPeers) -> int:
        mine.peers = peers
        block, model, optimizer = opened(tmp_path, every=100)
        with block as ckpt:
            if peers.rank:
                ckpt._handed.close()  # as where the plan has left it no parameters
            for step in ckpt.steps(20):
                update(model, optimizer)
                if step == 3:
                    break
        return ckpt._step

    assert Meeting(2).run(alone) == [4, 4]
    assert [saved.step for saved in list_saved(tmp_path)] == [4]
