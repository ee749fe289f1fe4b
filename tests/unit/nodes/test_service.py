from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import select

from windlass.agent import outcome
from windlass.blobs.local import LocalBlobs
from windlass.checkpoints.service import CheckpointService
from windlass.core.errors import Conflict, Gone, NotFound, Unauthorized
from windlass.db.database import Database
from windlass.engines.contract import Notice, StopKind
from windlass.nodes import book
from windlass.nodes.book import DatabaseNodeBook
from windlass.nodes.crowd import decide_pace
from windlass.nodes.service import NodeService
from windlass.nodes.tables import attempt_nodes
from windlass.runs.sealing import Seal
from windlass.runs.service import RunService
from windlass.testing.clock import FakeClock
from windlass.tracking.series import load_history
from windlass.tracking.store import load_summaries
from windlass.tracking.storedlogs import LogPlace, StoredLogs, is_watched
from windlass.wire.nodes import Hello, ReportHead, SentBytes, Welcome
from windlass.wire.runs import SubmitRequest


class Meeting:
    """An attempt with two nodes, seen from its engine (`book`) and from the API (`service`)."""

    def __init__(self, db: Database, blobs: LocalBlobs, seal: Seal, clock: FakeClock, run_id: str) -> None:
        self.db = db
        self.blobs = blobs
        self.clock = clock
        self.run_id = run_id
        self.attempt = f"{run_id}.1"
        self.nudges = 0
        self.book = DatabaseNodeBook(db, seal, clock)
        self.service = NodeService(db, blobs, seal, clock, nudge=self._nudge)
        self.book.prepare(self.attempt, [self._plan(0), self._plan(1)], {"KEY": "s3cret"})

    def _nudge(self) -> None:
        self.nudges += 1

    def _plan(self, rank: int) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "node_rank": rank,
            "nnodes": 2,
            "workers_per_node": 2,
            "self_launching": False,
            "code_digest": None,
        }

    def hello(self, rank: int, incarnation: str = "first") -> Welcome | list[int]:
        hello = Hello(incarnation=incarnation, address=f"10.0.0.{rank}", port=20_000 + rank, host=f"h{rank}")
        self.service.introduce(self.attempt, rank, hello)
        return self.service.welcome(self.attempt, rank, incarnation)

    def report(
        self, rank: int = 0, files: Mapping[str, tuple[int, bytes]] | None = None, **told: Any
    ) -> tuple[dict[str, int], bool]:
        parts = [(SentBytes(name=n, position=at, size=len(data)), data) for n, (at, data) in (files or {}).items()]
        head = ReportHead.model_validate({"incarnation": "first", "files": [part for part, _ in parts], **told})
        receipt = self.service.report(self.attempt, rank, head, parts)
        return receipt.positions, receipt.ended

    def logs(self) -> dict[str, bytes]:
        found = StoredLogs(self.db, self.blobs).find([LogPlace(self.attempt, 0), LogPlace(self.attempt, 1)])
        return {log.name: b"".join(log.pieces(0)) for log in found}


@pytest.fixture
def meeting(database: Database, blobs: LocalBlobs, seal: Seal, clock: FakeClock, service: RunService) -> Meeting:
    request = SubmitRequest.model_validate({"spec": {"command": "true", "code": None}})
    run_id = service.submit(request, idempotency_key=None, user=None).id
    return Meeting(database, blobs, seal, clock, run_id)


def ended(**more: Any) -> dict[str, Any]:
    return {**outcome.summary(reason="completed", message="", started_at=1.0, ended_at=2.0, exit_code=0), **more}


STATUS = {"state": "running", "started_at": 1.0, "pid": 7}


# ---- hello ---------------------------------------------------------------------------------------------------


def test_a_node_is_welcome_once_all_are_there(meeting: Meeting) -> None:
    assert meeting.hello(1) == [0]
    welcome = meeting.hello(0)
    assert isinstance(welcome, Welcome)
    assert (welcome.master_addr, welcome.master_port) == ("10.0.0.0", 20_000)
    assert welcome.node_addrs == ["10.0.0.0", "10.0.0.1"]
    assert welcome.secrets == {"KEY": "s3cret"}
    assert welcome.plan["node_rank"] == 0
    assert meeting.hello(0) == welcome  # an answer that got lost is given again
    assert isinstance(meeting.hello(1), Welcome)


def test_only_one_process_can_be_a_node(meeting: Meeting) -> None:
    meeting.hello(0)
    with pytest.raises(Conflict, match="is another process, on h0"):
        meeting.hello(0, "second")
    with pytest.raises(Conflict):
        meeting.service.report(meeting.attempt, 0, ReportHead(incarnation="second"), [])


def test_secrets_are_sealed_in_the_database_and_gone_after_the_end(meeting: Meeting) -> None:
    with meeting.db.read() as tx:
        assert b"s3cret" not in tx.execute(select(attempt_nodes.c.secrets)).scalars().first()
    meeting.book.close(meeting.attempt)
    with meeting.db.read() as tx:
        assert list(tx.execute(select(attempt_nodes.c.secrets, attempt_nodes.c.plan))) == [(None, {})] * 2


def test_a_prepared_attempt_is_not_prepared_again(meeting: Meeting) -> None:
    meeting.book.prepare(meeting.attempt, [{"another": "plan"}], {})
    assert len(meeting.book.load([meeting.attempt, "r-never.1"])[meeting.attempt]) == 2
    assert "r-never.1" not in meeting.book.load([meeting.attempt, "r-never.1"])


def test_what_is_over_is_gone_for_everyone(meeting: Meeting) -> None:
    meeting.hello(0)
    meeting.book.close(meeting.attempt)
    with pytest.raises(Gone):
        meeting.hello(0)
    with pytest.raises(Gone):
        meeting.report(0)
    with pytest.raises(Gone):
        meeting.service.code(meeting.attempt, 0)
    with pytest.raises(Gone):
        meeting.service.welcome("r-never.1", 0, "first")


def test_a_node_without_code_gets_none(meeting: Meeting) -> None:
    with pytest.raises(NotFound, match="no code snapshot"):
        meeting.service.code(meeting.attempt, 0)


# ---- tokens --------------------------------------------------------------------------------------------------


def test_a_token_is_good_for_one_node_and_on_every_server(meeting: Meeting, seal: Seal, clock: FakeClock) -> None:
    token = meeting.book.token(meeting.attempt, 0)
    meeting.service.check_token(token, meeting.attempt, 0)
    NodeService(meeting.db, meeting.blobs, seal, clock, nudge=lambda: None).check_token(token, meeting.attempt, 0)
    for attempt, rank in ((meeting.attempt, 1), (f"{meeting.run_id}.2", 0)):
        with pytest.raises(Unauthorized):
            meeting.service.check_token(token, attempt, rank)
    with pytest.raises(Unauthorized):
        meeting.service.check_token("", meeting.attempt, 0)


# ---- reports -------------------------------------------------------------------------------------------------


def test_reports_are_what_engines_see(meeting: Meeting) -> None:
    meeting.hello(0)
    usage = {"at": 3.0, "cpu_percent": 1.0, "rss_bytes": 2, "peak_rss_bytes": 2, "cpu_seconds": 0.1}
    usage |= {"gpus": [], "ranks": []}
    meeting.clock.advance(10)
    meeting.report(0, status=STATUS, usage=usage, environment={"host": "h0"}, notice={"message": "soon", "deadline": 9})
    report = meeting.book.load([meeting.attempt])[meeting.attempt][0]
    assert report.status == STATUS
    assert report.usage == usage
    assert report.environment == {"host": "h0"}
    assert report.notice == Notice(message="soon", deadline=9.0)
    assert report.address == "10.0.0.0"
    assert report.reported_at == meeting.clock.now()


def test_only_news_that_decisions_depend_on_wake_the_controller(meeting: Meeting) -> None:
    meeting.hello(0)
    meeting.report(0, status=STATUS)
    meeting.report(0, status=STATUS)
    meeting.report(0, {"rank-0.log": (0, b"x\n")})
    assert meeting.nudges == 1
    meeting.report(0, outcome=ended())
    assert meeting.nudges == 2


def test_an_outcome_counts_with_the_last_bytes_only_and_once(meeting: Meeting) -> None:
    meeting.hello(0)
    assert meeting.report(0, {"rank-0.log": (5, b"behind a gap")}, outcome=ended()) == ({"rank-0.log": 0}, False)
    assert meeting.book.load([meeting.attempt])[meeting.attempt][0].outcome is None
    assert meeting.report(0, {"rank-0.log": (0, b"all of it\n")}, outcome=ended()) == ({"rank-0.log": 10}, True)
    assert meeting.report(0, outcome=ended(reason="lost")) == ({}, True)
    found = meeting.book.load([meeting.attempt])[meeting.attempt][0].outcome
    assert found is not None
    assert found["reason"] == "completed"


def test_points_are_taken_once_and_in_whole_lines(meeting: Meeting) -> None:
    meeting.hello(0)
    lines = [json.dumps({"t": 1.0, "s": step, "m": {"loss": step}}).encode() + b"\n" for step in range(4)]
    data = b"".join(lines)
    cut = len(lines[0]) + 5
    assert meeting.report(0, {"metrics-1.jsonl": (0, data[:cut])})[0] == {"metrics-1.jsonl": len(lines[0])}
    for _ in range(2):
        assert meeting.report(0, {"metrics-1.jsonl": (0, data)})[0] == {"metrics-1.jsonl": len(data)}
    assert meeting.report(0, {"metrics-1.jsonl": (10**9, b"{}\n")})[0] == {"metrics-1.jsonl": len(data)}
    with meeting.db.read() as tx:
        assert [point.step for point in load_history(tx, meeting.run_id, "loss")] == [0, 1, 2, 3]
        assert load_summaries(tx, [meeting.run_id])[meeting.run_id]["loss"].count == 4


def test_notes_of_checkpoints_are_taken_once(meeting: Meeting, service: RunService) -> None:
    meeting.hello(0)
    meeting.hello(1)
    said = {"folder": "/c/1", "tier": "folder", "created_at": 1.0, "size_bytes": 5, "files": 1, "world_size": 2}
    line = json.dumps({"t": 1.0, "s": 7, "c": {**said, "reason": "interval"}}).encode() + b"\n"
    for _ in range(2):
        meeting.report(files={"metrics-0.jsonl": (0, line)})
    meeting.report(files={"metrics-0.jsonl": (0, line + line)})
    [found] = (
        CheckpointService(meeting.db, service, meeting.clock).list(meeting.run_id, everything=True, limit=9).checkpoints
    )
    assert (found.step, found.attempt, found.location, found.state) == (7, 1, "/c/1", "available")
    told = [event for event in service.events(meeting.run_id, after=0).events if event.kind == "checkpoint"]
    assert [(event.attempt, event.data["step"]) for event in told] == [(1, 7)]


def test_the_plan_that_a_job_tells_reaches_the_run(meeting: Meeting, service: RunService) -> None:
    meeting.hello(0)
    meeting.hello(1)
    meeting.report(files={"metrics-0.jsonl": (0, json.dumps({"t": 1.0, "p": "data=1,shard=2"}).encode() + b"\n")})
    assert service.view(meeting.run_id).tags == {"windlass.plan": "data=1,shard=2"}


def test_a_line_without_an_end_does_not_hold_up_the_rest(meeting: Meeting) -> None:
    meeting.hello(0)
    endless = b"x" * (1 << 20)
    assert meeting.report(0, {"metrics-0.jsonl": (0, endless)})[0] == {"metrics-0.jsonl": len(endless)}


def test_files_that_a_node_cannot_have_are_dropped(meeting: Meeting) -> None:
    meeting.hello(0)
    names = ["rank-2.log", "metrics-2.jsonl", "outcome.json", "../rank-0.log", "rank-00000000000000000000.log"]
    sent = dict.fromkeys([*names, "rank-1.log", "supervisor.log"], (0, b"data\n"))
    positions, _ = meeting.report(0, sent)
    assert positions == dict.fromkeys(sent, 5)
    assert meeting.logs().keys() == {"rank-1.log", "supervisor.log"}


# ---- stopping ------------------------------------------------------------------------------------------------


def test_a_wish_is_told_with_the_next_answer_and_can_be_hastened(meeting: Meeting) -> None:
    meeting.hello(1)
    meeting.hello(0)
    meeting.book.wish_to_stop(meeting.attempt, grace_s=30.0, kind=StopKind.PREEMPTED, reason="to make room")
    meeting.book.wish_to_stop(meeting.attempt, grace_s=60.0, kind=StopKind.CANCELLED, reason="later")
    head = ReportHead(incarnation="first")
    stop = meeting.service.report(meeting.attempt, 0, head, []).stop
    assert stop is not None
    assert stop.model_dump() == {"kind": "preempted", "reason": "to make room", "grace_s": 30.0}
    meeting.book.wish_to_stop(meeting.attempt, grace_s=1.0, kind=StopKind.CANCELLED, reason="now")
    stop = meeting.service.report(meeting.attempt, 0, head, []).stop
    assert stop is not None
    assert (stop.kind, stop.grace_s) == ("preempted", 1.0)


def test_a_node_that_has_no_plan_yet_never_starts(meeting: Meeting) -> None:
    assert meeting.hello(1) == [0]
    meeting.book.wish_to_stop(meeting.attempt, grace_s=30.0, kind=StopKind.CANCELLED, reason="not wanted")
    reports = meeting.book.load([meeting.attempt])[meeting.attempt]
    assert [report.outcome["reason"] for report in reports if report.outcome] == ["cancelled"] * 2
    for rank in range(2):
        with pytest.raises(Gone):
            meeting.hello(rank)
    with pytest.raises(Gone):
        meeting.service.welcome(meeting.attempt, 1, "first")


# ---- pace ----------------------------------------------------------------------------------------------------


def test_watched_nodes_send_at_once_and_many_nodes_rarely(meeting: Meeting) -> None:
    assert decide_pace(1, watched=True).pause_s == 0.1
    assert decide_pace(1, watched=False).beat_s == 0.5
    assert decide_pace(1_000, watched=False) == (2.0, 10.0)
    assert decide_pace(1_000, watched=True) == (0.1, 10.0)
    meeting.hello(0)
    StoredLogs(meeting.db, meeting.blobs).watch([meeting.attempt], now=meeting.clock.now())
    assert meeting.service.report(meeting.attempt, 0, ReportHead(incarnation="first"), []).pause_s == 0.1
    with meeting.db.read() as tx:
        assert not is_watched(tx, meeting.attempt, now=meeting.clock.now() + 60)


def test_a_book_sees_every_change_though_it_reads_only_what_changed(meeting: Meeting) -> None:
    def load() -> tuple[str | None, str | None, float | None]:
        report = meeting.book.load([meeting.attempt])[meeting.attempt][0]
        state = report.status["state"] if report.status else None
        return state, report.outcome["reason"] if report.outcome else None, report.reported_at

    assert load() == (None, None, None)
    meeting.hello(0)
    begun = meeting.clock.now()
    assert load() == (None, None, begun)
    meeting.report(0, status=STATUS)
    assert load() == ("running", None, begun)
    meeting.clock.advance(60)
    meeting.report(0)
    assert load() == ("running", None, begun + 60)
    meeting.report(0, status={**STATUS, "state": "stopping"})
    assert load() == ("stopping", None, begun + 60)
    other = meeting.book.load([meeting.attempt])[meeting.attempt][1]
    assert other.outcome is None
    meeting.book.wish_to_stop(meeting.attempt, grace_s=1.0, kind=StopKind.CANCELLED, reason="enough")
    assert load() == ("stopping", "cancelled", begun + 60)  # it had never got its plan


def test_a_book_forgets_what_is_closed(meeting: Meeting) -> None:
    """What nodes ran with is large, and a controller sees many attempts in its life."""
    meeting.hello(0)
    meeting.book.load([meeting.attempt])
    meeting.book.close(meeting.attempt)
    assert meeting.book._known == {}
    assert [report.node_rank for report in meeting.book.load([meeting.attempt])[meeting.attempt]] == [0, 1]


def test_a_book_can_be_asked_by_several_threads(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many launches are under way at once, while it forgets what is too much to remember."""
    monkeypatch.setattr(book, "_MOST_KNOWN", 0)

    def ask(_number: int) -> int:
        return len(meeting.book.load([meeting.attempt])[meeting.attempt])

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(ask, range(200))) == {2}
