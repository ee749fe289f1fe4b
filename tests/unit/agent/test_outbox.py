from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from windlass.agent import layout, outbox, outcome
from windlass.agent.files import write_json
from windlass.agent.outbox import Draft, Outbox
from windlass.agent.pace import Pace
from windlass.testing.clock import FakeClock


def parse(draft: Draft) -> tuple[dict[str, Any], dict[str, bytes]]:
    line, _, data = draft.body.partition(b"\n")
    head = json.loads(line)
    sent, at = {}, 0
    for file in head["files"]:
        sent[file["name"]] = data[at : at + file["size"]]
        at += file["size"]
    assert at == len(data)
    return head, sent


def taken(draft: Draft) -> dict[str, int]:
    """What a server answers that took everything."""
    return {file["name"]: file["position"] + file["size"] for file in parse(draft)[0]["files"]}


def test_files_are_sent_as_they_grow(tmp_path: Path) -> None:
    box = Outbox(str(tmp_path), "me")
    assert not box.has_news()
    log = tmp_path / "rank-0.log"
    log.write_bytes(b"one\n")
    (tmp_path / "plan.json").write_text("{}")
    assert box.has_news()
    draft = box.draft()
    assert parse(draft)[1] == {"rank-0.log": b"one\n"}
    assert parse(box.draft())[1] == {"rank-0.log": b"one\n"}  # as long as nobody has it
    box.settle(draft, taken(draft))
    assert not box.has_news()
    log.write_bytes(b"one\ntwo\n")
    assert parse(box.draft())[1] == {"rank-0.log": b"two\n"}
    box.settle(draft, {"rank-0.log": 1})  # the server has lost some, or never had it
    assert parse(box.draft())[1] == {"rank-0.log": b"ne\ntwo\n"}


def test_files_that_no_rank_can_have_do_not_keep_the_rest_back(tmp_path: Path) -> None:
    """Programs may make what they like here, and a server refuses a report as a whole."""
    box = Outbox(str(tmp_path), "me")
    for name in ("rank-007.log", "metrics-%s.jsonl" % ("1" * 60), "rank-12345678.log"):
        (tmp_path / name).write_bytes(b"x\n")
    (tmp_path / "metrics-3.jsonl").mkdir()
    (tmp_path / "rank-3.log").symlink_to(tmp_path / "nowhere")
    (tmp_path / "rank-0.log").write_bytes(b"one\n")
    assert parse(box.draft())[1] == {"rank-0.log": b"one\n"}


def test_very_many_files_are_sent_in_several_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_MOST_FILES", 2)
    box = Outbox(str(tmp_path), "me")
    for rank in range(5):
        (tmp_path / f"rank-{rank}.log").write_bytes(b"x\n")
    sent = []
    while box.has_news():
        draft = box.draft()
        sent.append((len(parse(draft)[1]), draft.has_more))
        box.settle(draft, taken(draft))
    assert sent == [(2, True), (2, True), (1, False)]


def test_spools_are_sent_in_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_LONGEST_POINT_BYTES", 50)
    box = Outbox(str(tmp_path), "me")
    spool = tmp_path / "metrics-0.jsonl"
    spool.write_bytes(b"{}\n{unfini")
    draft = box.draft()
    assert parse(draft)[1] == {"metrics-0.jsonl": b"{}\n"}
    box.settle(draft, taken(draft))
    assert parse(box.draft())[1] == {}
    spool.write_bytes(b"{}\n" + b"x" * 60)
    assert parse(box.draft())[1] == {"metrics-0.jsonl": b"x" * 60}


def test_much_is_sent_in_several_reports_and_the_outcome_with_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "_MOST_BYTES", 100)
    monkeypatch.setattr(outbox, "_LONGEST_POINT_BYTES", 50)
    box = Outbox(str(tmp_path), "me")
    contents = {"metrics-0.jsonl": b"{}\n" * 40, "rank-0.log": b"a" * 90, "rank-1.log": b"b" * 130}
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    write_json(str(tmp_path / layout.OUTCOME), {"reason": "completed"})
    got = dict.fromkeys(contents, b"")
    drafts = 0
    while True:
        draft = box.draft()
        head, sent = parse(draft)
        drafts += 1
        assert sum(map(len, sent.values())) <= 100
        for name, data in sent.items():
            got[name] += data
        assert ("outcome" in head) == draft.is_last
        box.settle(draft, taken(draft))
        if draft.is_last:
            break
        assert draft.has_more
    assert got == contents
    assert drafts >= 4


def test_an_unfinished_line_does_not_hold_back_the_outcome(tmp_path: Path) -> None:
    box = Outbox(str(tmp_path), "me")
    (tmp_path / "metrics-0.jsonl").write_bytes(b"{half")
    write_json(str(tmp_path / layout.OUTCOME), {"reason": "completed"})
    assert box.draft().is_last


def test_reports_that_are_too_large_for_a_proxy_get_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is longer than such a report is sent all the same, and one without an end holds nothing back."""
    monkeypatch.setattr(outbox, "_MOST_BYTES", 4_000)
    monkeypatch.setattr(outbox, "_LONGEST_POINT_BYTES", 2_000)
    monkeypatch.setattr(outbox, "_LEAST_BYTES", 300)
    box = Outbox(str(tmp_path), "me")
    lines = b"%s\n{}\n{half" % (b"x" * 1_000)
    (tmp_path / "metrics-0.jsonl").write_bytes(lines)
    (tmp_path / "rank-0.log").write_bytes(b"a" * 2_500)
    write_json(str(tmp_path / layout.OUTCOME), {"reason": "completed"})
    sizes = []
    while box.shrink(draft := box.draft()):
        sizes.append(len(draft.body))
    assert sizes == sorted(sizes, reverse=True)
    assert 0 < len(sizes) < 10
    got = {"metrics-0.jsonl": b"", "rank-0.log": b""}
    while True:
        draft = box.draft()
        sent = parse(draft)[1]
        assert len(sent) == 1 or sum(map(len, sent.values())) <= 300
        for name, data in sent.items():
            got[name] += data
        box.settle(draft, taken(draft))
        if draft.is_last:
            break
        assert sent
    assert got == {"metrics-0.jsonl": lines.removesuffix(b"{half"), "rank-0.log": b"a" * 2_500}
    assert not box.shrink(box.draft())


def test_small_files_are_sent_when_they_change(tmp_path: Path) -> None:
    box = Outbox(str(tmp_path), "me")
    write_json(str(tmp_path / layout.STATUS), {"state": "starting"})
    assert box.is_urgent()
    draft = box.draft()
    assert parse(draft)[0]["status"] == {"state": "starting"}
    box.settle(draft, {})
    assert not box.is_urgent()
    assert "status" not in parse(box.draft())[0]
    write_json(str(tmp_path / layout.USAGE), {"at": 1})
    assert not box.is_urgent()
    assert parse(box.draft())[0]["usage"] == {"at": 1}
    write_json(str(tmp_path / layout.STATUS), {"state": "running"})
    assert box.is_urgent()


def test_a_change_after_the_draft_is_sent_with_the_next(tmp_path: Path) -> None:
    box = Outbox(str(tmp_path), "me")
    write_json(str(tmp_path / layout.STATUS), {"state": "starting"})
    draft = box.draft()
    write_json(str(tmp_path / layout.STATUS), {"state": "running"})
    box.settle(draft, {})
    assert parse(box.draft())[0]["status"] == {"state": "running"}


@pytest.mark.parametrize("text", ["", "[]", '{"cpu'])
def test_a_small_file_that_cannot_be_read_keeps_nothing_else_back(tmp_path: Path, text: str) -> None:
    """Lost power leaves such files, and programs may write what they like here."""
    box = Outbox(str(tmp_path), "me")
    for name in (layout.STATUS, layout.USAGE, layout.ENVIRONMENT, layout.NOTICE):
        (tmp_path / name).write_text(text)
    draft = box.draft()
    assert parse(draft)[0].keys() == {"incarnation", "files"}
    box.settle(draft, {})
    assert not box.is_urgent()
    write_json(str(tmp_path / layout.STATUS), {"state": "running"})
    write_json(str(tmp_path / layout.OUTCOME), {"reason": "completed"})
    head = parse(box.draft())[0]
    assert (head["status"], head["outcome"]) == ({"state": "running"}, {"reason": "completed"})


@pytest.mark.parametrize("off_s", [-3600.0, 0.0, 3600.0])
def test_an_outcome_waits_for_its_surroundings_by_any_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off_s: float
) -> None:
    """But not until a clock that was set back has come to the time of the file."""
    box = Outbox(str(tmp_path), "me")
    outcome.write(str(tmp_path), outcome.summary(reason="completed", message="", started_at=1.0, ended_at=2.0))
    clock = FakeClock()
    monkeypatch.setattr("windlass.agent.outbox.time", SimpleNamespace(time=clock.now))
    os.utime(tmp_path / layout.OUTCOME, (clock.now() + off_s,) * 2)
    assert box.draft().is_last == (off_s != 0.0)
    write_json(str(tmp_path / layout.ENVIRONMENT), {})
    assert box.draft().is_last


# ---- pace ----------------------------------------------------------------------------------------------------


def test_new_lines_are_sent_soon_at_first_and_then_as_the_server_wishes() -> None:
    pace = Pace(100.0)
    pace.sent(100.0)
    pace.heard(2.0, 5.0, has_more=False)
    assert not pace.is_due(100.05, has_news=True, is_urgent=False)
    assert pace.is_due(100.11, has_news=True, is_urgent=False)
    pace.sent(120.0)
    assert not pace.is_due(121.0, has_news=True, is_urgent=False)
    assert pace.is_due(121.0, has_news=True, is_urgent=True)
    assert pace.is_due(122.0, has_news=True, is_urgent=False)
    assert not pace.is_due(124.0, has_news=False, is_urgent=False)
    assert pace.is_due(125.0, has_news=False, is_urgent=False)
    assert pace.wait_s(121.0) == 2.0


def test_a_server_that_is_away_is_asked_ever_more_rarely() -> None:
    pace, now, waits = Pace(0.0), 0.0, []
    for _ in range(7):
        pace.sent(now)
        pace.failed()
        waits.append(pace.wait_s(now))
        assert not pace.is_due(now + waits[-1] - 0.01, has_news=True, is_urgent=True)
        now += waits[-1] + 0.001
        assert pace.is_due(now, has_news=True, is_urgent=True)
    assert waits == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
    pace.heard(0.1, 1.0, has_more=True)
    assert pace.wait_s(now) == 0.0
