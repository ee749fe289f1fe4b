"""Notices of clouds, from servers that speak as their metadata services do."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.integration.away import Away, await_that, away
from windlass.agent import layout, outcome, spot
from windlass.agent.files import read_json, write_json
from windlass.testing.servers import end_processes_of, start_server

Answer = Callable[[str, str, dict[str, str]], str | None]  # method, path, headers -> text, or None for 404


@contextmanager
def metadata_service(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            text = answer(self.command, self.path, headers)
            body = (text or "not found").encode()
            self.send_response(404 if text is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_GET  # noqa: N815  # the name that the base class looks for

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def aws(*, action: str | None = None, rebalance: bool = False) -> Answer:
    def answer(method: str, path: str, headers: dict[str, str]) -> str | None:
        soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 120))
        if (method, path) == ("PUT", "/latest/api/token"):
            return "t0ken" if headers.get("x-aws-ec2-metadata-token-ttl-seconds") else None
        if headers.get("x-aws-ec2-metadata-token") != "t0ken":
            return None
        if path == "/latest/meta-data/spot/instance-action" and action:
            return json.dumps({"action": action, "time": soon})
        if path == "/latest/meta-data/events/recommendations/rebalance" and rebalance:
            return json.dumps({"noticeTime": soon})
        return None

    return answer


def gcp(_method: str, path: str, headers: dict[str, str]) -> str | None:
    asked = path == "/computeMetadata/v1/instance/preempted" and headers.get("metadata-flavor") == "Google"
    return "TRUE" if asked else None


def azure(_method: str, path: str, headers: dict[str, str]) -> str | None:
    if not path.startswith("/metadata/scheduledevents?api-version=") or headers.get("metadata") != "true":
        return None
    begins = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 60))
    events = [{"EventType": "Reboot", "NotBefore": begins}, {"EventType": "Preempt", "NotBefore": begins}]
    return json.dumps({"DocumentIncarnation": 1, "Events": events})


@pytest.mark.parametrize(
    ("cloud", "answer", "left_s"),
    [("aws", aws(action="terminate"), 120), ("gcp", gcp, 30), ("azure", azure, 60)],
)
def test_a_cloud_s_notice_becomes_a_wish_to_stop(tmp_path: Path, cloud: str, answer: Answer, left_s: float) -> None:
    write_json(str(tmp_path / layout.PLAN), {"grace_s": 600.0})
    with metadata_service(answer) as url:
        spot.watch(str(tmp_path), {spot.CLOUD: cloud, spot.ENDPOINT: url, spot.EVERY: "0.01"})
    notice, stop = read_json(str(tmp_path / layout.NOTICE)), read_json(str(tmp_path / layout.STOP))
    assert notice is not None
    assert stop is not None
    assert notice["deadline"] == pytest.approx(time.time() + left_s, abs=60)
    assert stop["kind"] == "preempted"
    assert 0 < stop["grace_s"] < left_s


def test_a_likely_interruption_is_only_told(tmp_path: Path) -> None:
    with metadata_service(aws(rebalance=True)) as url:
        environ = {spot.CLOUD: "aws", spot.ENDPOINT: url, spot.EVERY: "0.01"}
        watching = threading.Thread(target=spot.watch, args=(str(tmp_path), environ))
        watching.start()
        await_that(lambda: (tmp_path / layout.NOTICE).exists())
        outcome.write(str(tmp_path), outcome.never_started("completed", "", 0.0))  # so that the watch ends
        watching.join()
    assert not (tmp_path / layout.STOP).exists()


def test_a_machine_without_notices_is_watched_to_the_end(tmp_path: Path) -> None:
    asked: list[str] = []

    def nothing(_method: str, path: str, _headers: dict[str, str]) -> str | None:
        asked.append(path)
        return "FALSE"

    with metadata_service(nothing) as url:
        environ = {spot.CLOUD: "gcp", spot.ENDPOINT: url, spot.EVERY: "0.01"}
        watching = threading.Thread(target=spot.watch, args=(str(tmp_path), environ))
        watching.start()
        await_that(lambda: len(asked) > 2)
        outcome.write(str(tmp_path), outcome.never_started("completed", "", 0.0))
        watching.join()
    assert not (tmp_path / layout.NOTICE).exists()


def test_an_unknown_cloud_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"WINDLASS_SPOT_NOTICES is 'moon'; known: aws, azure, gcp"):
        spot.watch(str(tmp_path), {spot.CLOUD: "moon"})


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Away]:
    with away(tmp_path, f"sqlite:///{tmp_path / 'windlass.db'}") as found:
        yield found


def test_a_node_that_is_warned_saves_and_ends_preempted(nodes: Away) -> None:
    script = (
        "import signal, time\n"
        "def stop(*_):\n    print('saved', flush=True); raise SystemExit\n"
        "signal.signal(signal.SIGTERM, stop); print('here', flush=True); time.sleep(600)"
    )
    attempt = nodes.prepare("python", "-c", script, grace_s=20.0)
    is_taken = threading.Event()

    def answer(method: str, path: str, headers: dict[str, str]) -> str | None:
        return gcp(method, path, headers) if is_taken.is_set() else "FALSE"

    with metadata_service(answer) as url:
        environ = {spot.CLOUD: "gcp", spot.ENDPOINT: url, spot.EVERY: "0.05"}
        relay = nodes.start(attempt, environ=environ)
        await_that(lambda: nodes.texts(attempt) == ["here"], nodes.describe)
        is_taken.set()
        assert relay.wait(40) != 0
    ended = nodes.outcome(attempt)
    assert (ended["reason"], ended["message"]) == ("preempted", "Google takes this spot machine")
    assert nodes.texts(attempt) == ["here", "saved"]
    assert nodes.report(attempt).notice is not None


def test_the_runs_of_a_server_s_own_machine_are_stopped_in_time_and_wait(tmp_path: Path) -> None:
    script = (
        "import signal, time\n"
        "def stop(*_):\n    print('saved', flush=True); raise SystemExit\n"
        "signal.signal(signal.SIGTERM, stop); print('here', flush=True); time.sleep(600)"
    )
    is_taken = threading.Event()

    def answer(method: str, path: str, headers: dict[str, str]) -> str | None:
        return gcp(method, path, headers) if is_taken.is_set() else "FALSE"

    config = tmp_path / "windlass.yaml"
    config.write_text("engines: {here: {type: local, warm: false, spot_notices: gcp}}\n")
    home = tmp_path / "home"
    with ExitStack() as stack:
        url = stack.enter_context(metadata_service(answer))
        stack.callback(end_processes_of, home)
        environ = {spot.ENDPOINT: url, spot.EVERY: "0.05"}
        server = start_server(home, arguments=["--config", str(config)], environ=environ)
        stack.callback(server.kill)
        client = stack.enter_context(server.client())
        spec = {"command": [sys.executable, "-c", script], "code": None, "retry": {"backoff": "1s"}}
        run = client.post("/api/runs", json={"spec": spec}).raise_for_status().json()["id"]

        def lines() -> list[str]:
            return [line["text"] for line in client.get(f"/api/runs/{run}/logs").json()["lines"]]

        def attempts() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = client.get(f"/api/runs/{run}/attempts").json()["attempts"]
            return found

        await_that(lambda: lines() == ["here"])
        is_taken.set()
        await_that(lambda: attempts()[0]["state"] == "ended")
        assert attempts()[0]["exit"]["reason"] == "preempted"
        assert lines() == ["here", "saved"]
        told = [event["message"] for event in client.get(f"/api/runs/{run}/events").json()["events"]]
        assert any(message.startswith("Google takes this spot machine; attempt 1 is stopped") for message in told)
        # Nothing is placed on a machine that goes, however long that takes; if it stays after all, the run goes on.
        assert len(attempts()) == 1
        is_taken.clear()
        await_that(lambda: len(attempts()) == 2 and lines() == ["here", "saved", "here"])
