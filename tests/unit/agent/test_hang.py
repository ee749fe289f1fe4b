from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.agent import comeback, layout
from windlass.agent.hang import FIRST_S, FLOOR_S, MULTIPLE, PAUSES, Habit, Hangs, decide_hang
from windlass.agent.progress import NOTHING, Progress, ProgressFile, read_progress


def told(step: int, at: float, *, restored_at: float = 0.0) -> Progress:
    return Progress(step, -1, at, restored_at, 0.0, step + 1)


def habit(*times: float) -> Habit:
    """One that finished a step at each of these times, and was looked at each time."""
    found = Habit()
    for step, at in enumerate(times):
        found = found.learn(told(step, at))
    return found


def test_one_that_never_told_a_step_is_never_judged() -> None:
    assert decide_hang({0: Habit(), 1: Habit().learn(NOTHING)}, None, now=1e9) is None
    assert decide_hang({0: Habit()}, 1.0, now=1e9) is None


def test_short_steps_do_not_make_short_patience() -> None:
    quick = habit(*(0.1 * step for step in range(100)))
    assert quick.limit_s(None) == FLOOR_S


def test_long_steps_make_it_longer() -> None:
    slow = habit(*(100.0 * step for step in range(10)))
    assert slow.limit_s(None) == MULTIPLE * 100.0


def test_a_pause_that_was_seen_may_come_again() -> None:
    """As with an evaluation after each epoch."""
    pausing = habit(0, 1, 2, 3, 503, 504, 505)
    assert pausing.limit_s(None) == pytest.approx(PAUSES * 500.0)


def test_the_first_steps_and_a_load_have_long() -> None:
    assert habit(0, 1).limit_s(None) == FIRST_S
    assert Habit().learn(NOTHING._replace(restored_at=5.0)).limit_s(10.0) == FIRST_S


def test_one_that_tells_a_step_an_epoch_has_many_times_as_long_as_the_first_one_took() -> None:
    epoch_s = 2400.0
    first = Habit(begun_at=100.0).learn(told(0, 100.0 + epoch_s))
    assert first.limit_s(None) == MULTIPLE * epoch_s
    assert first.limit_s(60.0) == 60.0
    loaded = NOTHING._replace(step=0, steps=1, restored_at=1000.0, stepped_at=1000.0 + epoch_s)
    assert Habit(begun_at=100.0).learn(loaded).limit_s(None) == MULTIPLE * epoch_s
    assert first.learn(told(3, 110.0 + epoch_s)).limit_s(None) == FLOOR_S, "a start says nothing of the steps to come"


def test_one_that_has_loaded_a_state_is_judged_if_its_pace_is_known() -> None:
    loaded = NOTHING._replace(restored_at=5.0)
    assert Habit().learn(loaded).limit_s(None) is None
    assert Habit(usual_s=1.0).learn(loaded).limit_s(None) == FIRST_S
    assert Habit(usual_s=2400.0).learn(loaded).limit_s(None) == MULTIPLE * 2400.0
    assert Habit(first_s=2400.0).learn(loaded).limit_s(None) == PAUSES * 2400.0


def test_one_that_has_finished_may_take_its_time() -> None:
    """To evaluate, to export, to wait for uploads."""
    quick = habit(*range(9))
    finished = quick.learn(quick.last._replace(finished_at=9.0))
    assert decide_hang({0: finished}, None, now=1e9) is None
    assert decide_hang({0: finished}, 5.0, now=1e9) is None
    found = decide_hang({0: finished, 1: quick}, None, now=1e9)
    assert found is not None
    assert found.rank == 1
    assert finished.learn(told(9, 100.0)).limit_s(None) is not None


def test_who_is_behind_is_named() -> None:
    ahead, behind = habit(*range(9)), habit(*range(8))
    found = decide_hang({0: ahead, 1: ahead, 2: behind, 3: ahead}, None, now=7 + FLOOR_S + 0.5)
    assert found is not None
    assert (found.rank, found.quiet_s) == (2, FLOOR_S + 0.5)
    assert found.message == "no step for 600 s, and one usually takes 1 s: rank 2 is at step 7, others at step 8"
    together = decide_hang({0: ahead, 1: ahead}, 30.0, now=40.0)
    assert together is not None
    assert together.message == "no step for 32 s, and one usually takes 1 s: ranks 0, 1 are at step 8"
    assert decide_hang({0: ahead, 1: ahead}, 30.0, now=38.0) is None


def test_steps_that_were_not_looked_at_one_by_one_count_all_the_same() -> None:
    seldom = Habit().learn(told(0, 0.0)).learn(told(100, 50.0)).learn(told(200, 100.0))
    assert seldom.usual_s == pytest.approx(0.5)
    assert seldom.longest_s == pytest.approx(0.5)


@given(st.lists(st.floats(0.001, 1e4), min_size=4, max_size=50))
def test_nothing_that_happened_before_is_a_hang(spans: list[float]) -> None:
    """Whatever the pauses were, as long again is none."""
    times = [sum(spans[:count]) for count in range(len(spans) + 1)]
    found = habit(*times)
    assert decide_hang({0: found}, None, now=times[-1] + max(spans)) is None


def test_successors_have_the_pace_of_their_predecessors_and_a_start_of_their_own(tmp_path: Path) -> None:
    hangs = Hangs({"node_dir": str(tmp_path)})
    file = ProgressFile(str(tmp_path / layout.progress(3)))
    assert hangs.look(1e9, ended=()) is None
    for step in range(5):
        file.stepped(step)
        began = hangs.look(0.0, ended=())
        assert began is None
    assert hangs.look(1e9, ended=(3,)) is None
    found = hangs.look(1e9, ended=())
    assert found is not None
    assert found.rank == 3
    (tmp_path / layout.progress(3)).unlink()
    hangs.begin_again(1e9)
    assert hangs.look(1e9 + FIRST_S - 1, ended=()) is None
    again = hangs.look(1e9 + FIRST_S + 1, ended=())
    assert again is not None
    assert again.message == "no step for 1801 s, and one usually takes %.3g s: rank 3 told none since the start" % (
        hangs._habits[3].usual_s or 0.0
    )
    assert hangs.is_suspicious(1e9 + FIRST_S)


def test_successors_have_as_long_for_the_first_step_as_their_predecessors_needed(tmp_path: Path) -> None:
    hangs = Hangs({"node_dir": str(tmp_path)})
    file = ProgressFile(str(tmp_path / layout.progress(0)))
    file.stepped(0)
    told_at = read_progress(str(tmp_path / layout.progress(0))).stepped_at
    assert hangs.look(told_at - 2400.0, ended=()) is None
    (tmp_path / layout.progress(0)).unlink()
    hangs.begin_again(1e9)
    assert hangs.look(1e9 + PAUSES * 2400.0 - 1, ended=()) is None
    assert hangs.look(1e9 + PAUSES * 2400.0 + 1, ended=()) is not None


def test_off_is_off(tmp_path: Path) -> None:
    file = ProgressFile(str(tmp_path / layout.progress(0)))
    file.stepped(0)
    off = Hangs({"node_dir": str(tmp_path), "hang": "off"})
    assert off.look(1e9, ended=()) is None
    assert not off.is_suspicious(1e9)
    fixed = Hangs({"node_dir": str(tmp_path), "hang": 5.0})
    assert fixed.look(1e9, ended=()) is not None


class FolderAway:
    """A shared folder whose server is away, as the supervisor meets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._listdir = os.listdir
        self.is_away = False
        monkeypatch.setattr(os, "listdir", self._list)

    def _list(self, path: str) -> list[str]:
        if self.is_away:
            raise OSError(errno.ESTALE, "Stale file handle", path)
        return self._listdir(path)


def test_a_folder_that_cannot_be_looked_at_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nobody is taken to hang for it."""
    folder = FolderAway(monkeypatch)
    ProgressFile(str(tmp_path / layout.progress(0))).stepped(3)
    hangs = Hangs({"node_dir": str(tmp_path), "hang": 1})
    stepped_at = read_progress(str(tmp_path / layout.progress(0))).stepped_at
    assert hangs.look(stepped_at, ended=()) is None
    folder.is_away = True
    assert hangs.look(stepped_at + 100.0, ended=()) is None
    assert comeback.told_progress(str(tmp_path)) == []
    assert comeback.newest_step(str(tmp_path)) == -1
    folder.is_away = False
    assert comeback.newest_step(str(tmp_path)) == 3
    assert hangs.look(stepped_at + 100.0, ended=()) is not None
