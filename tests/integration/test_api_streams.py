"""Following over server-sent events: everything once, in order, through any number of broken connections."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from httpx import Client, ReadTimeout

from windlass.agent.layout import rank_log
from windlass.agent.ranklog import timestamp
from windlass.core.exits import Exit, ExitReason
from windlass.core.resources import NodeShare, Placement
from windlass.db.database import Database
from windlass.runs import store
from windlass.runs.records import exit_to_json
from windlass.runs.types import EventKind
from windlass.server.compose import Parts, compose
from windlass.server.homefolder import prepare
from windlass.server.settings import Role, Settings
from windlass.testing.servers import serving


@dataclass
class Message:
    kind: str
    data: Any
    id: str | None


def messages(lines: Iterator[str]) -> Iterator[Message]:
    """As a browser reads them."""
    kind, data, last = "message", "", None
    for line in lines:
        if not line:
            if data:
                yield Message(kind, json.loads(data), last)
            kind, data, last = "message", "", None
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                data += value
            elif name == "id":
                last = value


class Run:
    """A run whose attempts and logs the test makes up: there is no controller here."""

    def __init__(self, api: Client, db: Database, folder: Path) -> None:
        self.api, self.db, self.folder = api, db, folder
        spec = {"command": "x", "code": None, "name": "streamed"}
        self.id = api.post("/api/runs", json={"spec": spec}).json()["id"]
        self._at = 1_700_000_000.0

    def attempt(self, number: int = 1) -> Path:
        folder = self.folder / str(number)
        folder.mkdir(parents=True)
        placement = Placement(engine="fake", shares=(NodeShare(node="n", cpus=1, memory_bytes=0),))
        with self.db.write() as tx:
            run = store.load_run(tx, self.id)
            assert run is not None
            new = store.insert_attempt(tx, run, placement, now=0.0)
            store.update_attempt(tx, new, log_dirs=[str(folder)])
            store.advance(tx, run, EventKind.PLACED, now=0.0, message="placed", attempt=number, attempt_count=number)
        self.advance(EventKind.STARTED, started_at=0.0)
        return folder

    def advance(self, kind: EventKind, **changes: Any) -> None:
        with self.db.write() as tx:
            run = store.load_run(tx, self.id)
            assert run is not None
            store.advance(tx, run, kind, now=0.0, message=str(kind), **changes)

    def end(self) -> None:
        ended = Exit(reason=ExitReason.COMPLETED)
        self.advance(EventKind.SUCCEEDED, ended_at=1.0, exit=exit_to_json(ended))

    def write(self, folder: Path, rank: int, *texts: str, flag: str = "o") -> None:
        with (folder / rank_log(rank)).open("ab") as file:
            for text in texts:
                self._at += 0.001
                file.write(f"{timestamp(self._at)} {flag} {text}\n".encode())

    @contextmanager
    def follow(self, path: str, last_id: str | None = None, **params: Any) -> Iterator[Iterator[Message]]:
        headers = {"Last-Event-ID": last_id} if last_id else {}
        url = f"/api/runs/{self.id}/{path}"
        with self.api.stream("GET", url, params={"follow": True, **params}, headers=headers, timeout=10.0) as answer:
            assert answer.status_code == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield messages(answer.iter_lines())


@pytest.fixture
def parts(tmp_path: Path, database_url: str) -> Iterator[Parts]:
    home = tmp_path / "home"
    prepare(home)
    composed = compose(Settings(home=home, database_url=database_url, role=Role.API))
    yield composed
    composed.db.close()


@pytest.fixture
def run(parts: Parts, tmp_path: Path) -> Iterator[Run]:
    with serving(parts) as api:
        yield Run(api, parts.db, tmp_path / "logs")


def texts(found: list[Message]) -> list[str]:
    return [message.data["text"] for message in found if message.kind == "log"]


def test_logs_are_followed_to_the_end(run: Run) -> None:
    folder = run.attempt()
    run.write(folder, 0, "one", "two")

    def go_on() -> None:
        run.write(folder, 1, "three")
        run.write(folder, 0, "four")
        run.end()

    with run.follow("logs") as stream:
        found = [next(stream), next(stream)]
        writer = threading.Thread(target=go_on)
        writer.start()
        found += list(stream)
        writer.join()
    assert texts(found) == ["one", "two", "three", "four"]
    assert found[-1].kind == "end"
    assert found[-1].data["state"] == "succeeded"
    assert found[-1].data["exit_code"] == 0


def test_a_reader_that_is_cut_off_after_any_line_misses_and_repeats_nothing(run: Run) -> None:
    folder = run.attempt()
    for number in range(6):
        run.write(folder, number % 3, f"{number}")
    run.write(folder, 0, "partial", flag="e+")
    run.end()
    with run.follow("logs") as stream:
        everything = list(stream)
    assert len(texts(everything)) == 7
    for cut in range(len(everything) - 1):
        with run.follow("logs", everything[cut].id) as stream:
            rest = list(stream)
        assert texts(everything[: cut + 1]) + texts(rest) == texts(everything)
        assert rest[-1].kind == "end"


def test_reading_one_line_per_connection_while_it_is_written(run: Run) -> None:
    folder = run.attempt()
    last, seen = None, []
    for number in range(5):
        run.write(folder, number % 2, str(number))
        with run.follow("logs", last) as stream:
            message = next(stream)
        seen.append(message.data["text"])
        last = message.id
    assert seen == ["0", "1", "2", "3", "4"]


def test_a_new_attempt_is_followed_too(run: Run) -> None:
    run.write(run.attempt(1), 0, "first attempt")
    with run.follow("logs") as stream:
        found = [next(stream)]
        run.advance(EventKind.RETRYING)
        run.write(run.attempt(2), 0, "second attempt")
        run.end()
        found += list(stream)
    assert [(m.data["attempt"], m.data["text"]) for m in found if m.kind == "log"] == [
        (1, "first attempt"),
        (2, "second attempt"),
    ]


def test_a_tail_begins_near_the_end(run: Run) -> None:
    folder = run.attempt()
    run.write(folder, 0, *(str(number) for number in range(100)))
    run.end()
    with run.follow("logs", tail=3) as stream:
        assert texts(list(stream)) == ["97", "98", "99"]
    with run.follow("logs", tail=0) as stream:
        assert texts(list(stream)) == []
    page = run.api.get(f"/api/runs/{run.id}/logs", params={"tail": 2}).json()
    assert [line["text"] for line in page["lines"]] == ["98", "99"]


def test_pages_of_logs_go_on_where_they_ended(run: Run) -> None:
    folder = run.attempt()
    run.write(folder, 0, *(str(number) for number in range(10)))
    seen, after = [], None
    for _ in range(4):
        params = {"limit": 3, **({"after": after} if after else {})}
        page = run.api.get(f"/api/runs/{run.id}/logs", params=params).json()
        seen += [line["text"] for line in page["lines"]]
        after = page["next_cursor"]
    run.write(folder, 0, "ten")
    page = run.api.get(f"/api/runs/{run.id}/logs", params={"after": after}).json()
    assert [*seen, *(line["text"] for line in page["lines"])] == [*(str(n) for n in range(10)), "ten"]


def test_one_rank_one_attempt_one_stream(run: Run) -> None:
    folder = run.attempt()
    run.write(folder, 0, "a")
    run.write(folder, 1, "b")
    run.write(folder, 1, "c", flag="e")
    run.end()
    for params, expected in (
        ({"rank": 1}, ["b", "c"]),
        ({"stream": "stderr"}, ["c"]),
        ({"attempt": 2}, []),
        ({"rank": 0, "stream": "stdout", "attempt": 1}, ["a"]),
    ):
        with run.follow("logs", **params) as stream:
            assert texts(list(stream)) == expected


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"rank": 5}, "there is no rank 5; the run has ranks 0 to 1"),
        ({"attempt": 7}, "there is no attempt 7; the run has attempt 1 only"),
        ({"since": 20, "until": 10}, "`since` (20) is after `until` (10)"),
    ],
)
def test_logs_of_what_is_not_there_are_refused(run: Run, params: dict[str, int], said: str) -> None:
    run.write(run.attempt(), 1, "b")
    answer = run.api.get(f"/api/runs/{run.id}/logs", params=params)
    assert answer.status_code in (404, 422)
    assert said in answer.text


def test_more_lines_than_one_look_takes(run: Run) -> None:
    folder = run.attempt()
    run.write(folder, 0, *(str(number) for number in range(4_500)))
    run.end()
    with run.follow("logs") as stream:
        assert texts(list(stream)) == [str(number) for number in range(4_500)]


def test_events_are_followed_and_resumed(run: Run) -> None:
    run.attempt()
    run.end()
    with run.follow("events") as stream:
        everything = list(stream)
    assert [m.data["kind"] for m in everything if m.kind == "event"] == ["submitted", "placed", "started", "succeeded"]
    for cut in range(len(everything) - 1):
        with run.follow("events", everything[cut].id) as stream:
            rest = list(stream)
        assert [m.data for m in everything[: cut + 1] + rest] == [m.data for m in everything]


def test_one_stream_has_it_all(run: Run) -> None:
    folder = run.attempt()
    batch = {"source": "s", "seq": 0, "points": [{"step": 3, "total": 9, "at": 5.0, "values": {"loss": 0.5}}]}
    run.api.post(f"/api/runs/{run.id}/metrics", json=batch)
    run.write(folder, 0, "hello")
    with run.follow("stream") as stream:
        found = [next(stream)]
        run.end()
        found += list(stream)
    kinds = [message.kind for message in found]
    assert kinds[0] == "run"
    assert {"run", "event", "log", "progress", "end"} == set(kinds)
    progress = next(message.data for message in found if message.kind == "progress")
    assert progress["progress"]["step"] == 3
    assert progress["metrics"] == {"loss": 0.5}
    last = [message.data["state"] for message in found if message.kind == "run"][-1]
    assert last == "succeeded"
    with run.follow("stream", found[-1].id) as stream:
        assert {message.kind for message in stream} <= {"run", "progress", "end"}


def test_a_stream_position_that_is_none_of_ours_is_refused(run: Run) -> None:
    for wrong in ("x", "1;x", "1;1.0:x", "1;1.0:-1", f"1;1.0:{2**70}", "1;1.0:1:2", "-1", str(2**70), "1" * 5_000):
        answer = run.api.get(f"/api/runs/{run.id}/logs?follow=true", headers={"Last-Event-ID": wrong})
        assert answer.status_code == 422, wrong
        assert answer.json()["code"] == "invalid_input"
        assert "give back" in answer.json()["message"]


def test_a_server_that_stops_ends_its_streams(parts: Parts, tmp_path: Path) -> None:
    ended = threading.Event()
    with serving(parts) as api:
        run = Run(api, parts.db, tmp_path / "logs")
        run.write(run.attempt(), 0, "hello")
        began = threading.Event()

        def read() -> None:
            with run.follow("logs") as stream:
                for _ in stream:
                    began.set()
            ended.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert began.wait(10)
        started = time.monotonic()
        parts.services.closing = True
        reader.join(5)
        assert ended.is_set()
        assert time.monotonic() - started < 3


def test_a_quiet_stream_stays_open(run: Run) -> None:
    run.attempt()
    with (
        pytest.raises(ReadTimeout),
        run.api.stream("GET", f"/api/runs/{run.id}/logs?follow=true", timeout=0.7) as answer,
    ):
        list(answer.iter_lines())
