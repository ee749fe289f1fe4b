"""What a node of this machine left, whenever its supervisor ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windlass.agent import kernel, layout, outcome
from windlass.agent.files import write_json
from windlass.core.exits import ExitReason
from windlass.engines.local.node import LocalNode

GONE: dict[str, Any] = {"pid": 2**22 + 1, "pid_start": 1, "boot_id": "another", "sid": 2**22 + 1, "started_at": 1.0}


class Ending(LocalNode):
    """Its supervisor ends just after the first look at its status."""

    __slots__ = ()

    def status(self) -> dict[str, Any] | None:
        before = super().status()
        if not outcome.exists(str(self.path)):
            write_json(str(self.path / layout.STATUS), {**GONE, "recoveries": [{"generation": 1}]})
            ended = outcome.summary(reason="signal", message="killed", started_at=1.0, ended_at=2.0)
            outcome.write(str(self.path), ended)
        return before


def test_what_was_written_with_the_end_is_seen_with_it(tmp_path: Path) -> None:
    write_json(str(tmp_path / layout.STATUS), GONE)
    ended, status = Ending(path=tmp_path, attempt_id="r-bcdfghjkmn.1", rank=0).last_word(3.0)
    assert ended is not None
    assert status is not None
    assert ended["reason"] == "signal"
    assert status["recoveries"] == [{"generation": 1}]


def test_one_that_died_without_a_word_is_lost(tmp_path: Path) -> None:
    write_json(str(tmp_path / layout.STATUS), GONE)
    assert kernel.boot_id() != GONE["boot_id"]
    ended, status = LocalNode(path=tmp_path, attempt_id="r-bcdfghjkmn.1", rank=0).last_word(3.0)
    assert ended is not None
    assert (ended["reason"], ended["ended_at"], status) == (ExitReason.LOST, 3.0, GONE)
