from __future__ import annotations

import json
from pathlib import Path

import pytest

from windlass.job.alerts import AlertGate
from windlass.job.session import Session
from windlass.tracking.points import Alert, MetricPoint, parse_spool


def test_a_few_of_a_kind_pass_at_once_and_then_one_a_minute() -> None:
    gate = AlertGate()
    assert [gate.let_through("nan", 0.0) for _ in range(8)] == [0] * 5 + [None] * 3
    assert gate.let_through("other", 0.0) == 0
    assert gate.let_through("nan", 59.0) is None
    assert gate.let_through("nan", 61.0) == 4
    assert gate.let_through("nan", 61.0) is None


def test_quiet_times_give_no_more_than_the_first_allowance() -> None:
    gate = AlertGate()
    gate.let_through("nan", 0.0)
    assert [gate.let_through("nan", 1e6) for _ in range(6)] == [0] * 5 + [None]


def test_kinds_without_end_share_an_allowance() -> None:
    gate = AlertGate()
    passed = [gate.let_through(f"kind {number}", 0.0) for number in range(1000)]
    assert sum(number is not None for number in passed) == 105


def test_an_alert_is_in_the_spool_when_the_call_returns(tmp_path: Path) -> None:
    session = Session({"WINDLASS_NODE_DIR": str(tmp_path), "RANK": "3", "WINDLASS_RUN_ID": "r-1"})
    session.log(1, None, {"loss": 1.0})
    session.alert("nan", "the loss is\nno number", 7, once=True)
    data = (tmp_path / "metrics-3.jsonl").read_bytes()
    chunk = parse_spool(data, 0)
    (point,), (alert,) = chunk.points, chunk.alerts
    assert isinstance(point, MetricPoint)
    assert (alert.kind, alert.message, alert.step, alert.once) == ("nan", "the loss is\nno number", 7, True)
    assert (chunk.bad_lines, chunk.next_position) == (0, len(data))


def test_outside_a_run_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    session = Session({})
    for _ in range(7):
        session.alert("slow", "data comes late")
    assert capsys.readouterr().err == "windlass: slow: data comes late\n" * 5


@pytest.mark.parametrize("kind", ["", "x" * 61, "a\nb"])
def test_a_kind_is_a_short_word(kind: str) -> None:
    with pytest.raises(ValueError, match="no kind of alert"):
        Session({}).alert(kind, "x")


@pytest.mark.parametrize("said", ["x", {}, {"kind": "x"}, [1], None])
def test_what_is_no_alert_is_counted(said: object) -> None:
    chunk = parse_spool(json.dumps({"t": 1.0, "a": said}).encode() + b"\n", 0)
    assert (chunk.alerts, chunk.bad_lines) == ([], 1)


def test_what_programs_say_is_cut_to_what_can_be_kept() -> None:
    line = json.dumps({"t": 1.0, "s": None, "a": {"kind": "k" * 100, "message": "m\0" * 5000}}).encode() + b"\n"
    (alert,) = parse_spool(line, 0).alerts
    assert alert == Alert(at=1.0, step=None, kind="k" * 60, message="m\ufffd" * 1000)
