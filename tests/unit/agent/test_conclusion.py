"""What a warned stop comes to where ranks end well all the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from windlass.agent import layout
from windlass.agent.conclusion import done_ranks, has_completed
from windlass.agent.masking import Mask
from windlass.agent.progress import ProgressFile
from windlass.agent.ranklog import RankLog
from windlass.agent.ranks import Rank
from windlass.agent.verdict import Verdict

WARNED = Verdict("preempted", "it makes room")
ROLES = [
    {"name": "worker", "count": 1, "argv": ["work"], "essential": True},
    {"name": "ps", "count": 1, "argv": ["serve"], "essential": False},
]


def plan(folder: Path, **options: Any) -> dict[str, Any]:
    return {
        "node_dir": str(folder),
        "argv": ["python", "train.py"],
        "self_launching": False,
        "workers_per_node": 2,
        **options,
    }


def rank_of(plan: dict[str, Any], number: int, exit_code: int | None = None) -> Rank:
    log = RankLog(os.path.join(plan["node_dir"], layout.rank_log(number)), Mask(()))
    log.close()
    rank = Rank(rank=number, pid=1000 + number, log=log, plan=plan)
    if exit_code is not None:
        rank.end = {"rank": number, "exit_code": exit_code}
    return rank


def tell(folder: Path, number: int, *, finished: bool) -> None:
    told = ProgressFile(str(folder / layout.progress(number)))
    told.stepped(5)
    if finished:
        told.finished()


@pytest.mark.parametrize(("finished", "completed"), [((0, 1), True), ((0,), False), ((), False)])
def test_of_a_launcher_all_workers_must_have_finished(
    tmp_path: Path, finished: tuple[int, ...], completed: bool
) -> None:
    launcher = plan(tmp_path, self_launching=True)
    for number in (0, 1):
        tell(tmp_path, number, finished=number in finished)
    done = done_ranks(launcher, [rank_of(launcher, 0)])
    assert has_completed(WARNED, done, [rank_of(launcher, 0, 0)]) is completed


def test_of_a_launcher_whose_workers_tell_nothing_nothing_is_known(tmp_path: Path) -> None:
    launcher = plan(tmp_path, self_launching=True)
    assert done_ranks(launcher, [rank_of(launcher, 0)]) == frozenset()
    tell(tmp_path, 0, finished=True)  # the other has told nothing
    assert done_ranks(launcher, [rank_of(launcher, 0)]) == frozenset()


def test_those_that_only_serve_are_not_asked(tmp_path: Path) -> None:
    roles = plan(tmp_path, roles=ROLES)
    tell(tmp_path, 0, finished=True)
    done = done_ranks(roles, [rank_of(roles, 0), rank_of(roles, 1)])
    assert done == {0}
    assert has_completed(WARNED, done, [rank_of(roles, 0, 0), rank_of(roles, 1, 143)])
    assert not has_completed(WARNED, done, [rank_of(roles, 0, 143), rank_of(roles, 1, 0)])
