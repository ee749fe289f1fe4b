"""Webhooks to a real receiver over HTTP: signed, tried again, and sent in spite of a server that is killed."""

from __future__ import annotations

import base64
import hmac
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from windlass.server.compose import compose
from windlass.server.settings import Settings
from windlass.testing.servers import running_server, serving, start_server

ALLOWED = {"MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http", "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true"}
PATIENCE_S = 20.0


@dataclass
class Receiver:
    """Answers with the next of `statuses`, then with 200; with 0 it does not answer before it is let go."""

    url: str
    statuses: list[int] = field(default_factory=list)
    heard: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    change: threading.Condition = field(default_factory=threading.Condition)
    let_go: threading.Event = field(default_factory=threading.Event)

    def take(self, headers: dict[str, str], body: bytes) -> int:
        with self.change:
            self.heard.append((headers, body))
            status = self.statuses.pop(0) if self.statuses else 200
            self.change.notify_all()
        if status == 0:
            self.let_go.wait(PATIENCE_S)
        return status or 200

    def await_heard(self, count: int) -> list[dict[str, Any]]:
        with self.change:
            assert self.change.wait_for(lambda: len(self.heard) >= count, PATIENCE_S), self.heard
            return [json.loads(body) for _, body in self.heard]

    def ids(self) -> list[str]:
        return [headers["x-mlflow-delivery-id"] for headers, _ in self.heard]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = found.take({name.lower(): value for name, value in self.headers.items()}, body)
            try:
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")
            except OSError:
                pass  # who asked is gone

        def log_message(self, *_about: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Receiver(f"http://127.0.0.1:{server.server_port}/hook")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield found
    found.let_go.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def api(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """With the thread that sends."""
    for name, value in ALLOWED.items():
        monkeypatch.setenv(name, value)
    parts = compose(settings)
    parts.deliverer.start()
    with serving(parts) as client:
        yield client
    parts.deliverer.stop()
    parts.db.close()


def call(client: httpx.Client, path: str, **body: Any) -> Any:
    answer = client.post(f"/api/2.0/mlflow/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def add_hook(client: httpx.Client, receiver: Receiver, **more: Any) -> str:
    events = [{"entity": "REGISTERED_MODEL", "action": "CREATED"}]
    webhook_id: str = call(client, "webhooks", name="hook", url=receiver.url, events=events, **more)["webhook"][
        "webhook_id"
    ]
    return webhook_id


def test_an_event_arrives_signed(api: httpx.Client, receiver: Receiver) -> None:
    add_hook(api, receiver, secret="hush")
    call(api, "registered-models/create", name="m", tags=[{"key": "a", "value": "b"}], description="about")
    [told] = receiver.await_heard(1)
    assert (told["entity"], told["action"]) == ("registered_model", "created")
    assert told["data"] == {"name": "m", "tags": {"a": "b"}, "description": "about"}
    headers, body = receiver.heard[0]
    signed = f"{headers['x-mlflow-delivery-id']}.{headers['x-mlflow-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.digest(b"hush", signed, "sha256")).decode()
    assert headers["x-mlflow-signature"] == f"v1,{expected}"
    assert headers["content-type"] == "application/json"


def test_trouble_of_the_receiver_is_waited_for(api: httpx.Client, receiver: Receiver) -> None:
    receiver.statuses = [500, 503]
    add_hook(api, receiver)
    call(api, "registered-models/create", name="m")
    receiver.await_heard(3)
    assert len(set(receiver.ids())) == 1


def test_trying_a_webhook_out(api: httpx.Client, receiver: Receiver) -> None:
    webhook_id = add_hook(api, receiver)
    result = call(api, f"webhooks/{webhook_id}/test")["result"]
    assert result == {"success": True, "response_status": 200, "response_body": "ok"}
    receiver.statuses = [401]
    asked = {"entity": "MODEL_VERSION_TAG", "action": "SET"}
    result = call(api, f"webhooks/{webhook_id}/test", event=asked)["result"]
    assert (result["success"], result["response_status"]) == (False, 401)
    told = receiver.await_heard(2)
    assert told[1]["data"] == {"name": "example_model", "version": "1", "key": "example_key", "value": "example_value"}


def test_only_so_many_are_tried_out_at_once(api: httpx.Client, receiver: Receiver) -> None:
    """Whoever waits for a receiver holds a thread: those of others must be left."""
    webhook_id = add_hook(api, receiver)
    receiver.statuses = [0] * 4
    with ThreadPoolExecutor(4) as pool:
        slow = [pool.submit(call, api, f"webhooks/{webhook_id}/test") for _ in range(4)]
        receiver.await_heard(4)
        answer = api.post(f"/api/2.0/mlflow/webhooks/{webhook_id}/test", json={})
        receiver.let_go.set()
        assert all(one.result(PATIENCE_S)["result"]["success"] for one in slow)
    assert (answer.status_code, answer.json()["error_code"]) == (503, "TEMPORARILY_UNAVAILABLE")
    assert call(api, f"webhooks/{webhook_id}/test")["result"]["success"]


def test_places_inside_are_refused_unless_allowed(
    settings: Settings, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_WEBHOOK_ALLOWED_SCHEMES", "http")
    parts = compose(settings)
    with serving(parts) as client:
        body = {"name": "a", "url": receiver.url, "events": [{"entity": "PROMPT", "action": "CREATED"}]}
        answer = client.post("/api/2.0/mlflow/webhooks", json=body)
    parts.db.close()
    assert answer.status_code == 400
    assert "must not resolve to a non-public IP address" in answer.json()["message"]


def test_webhooks_of_runs_by_our_own_api(api: httpx.Client, receiver: Receiver) -> None:
    body = {"name": "runs", "url": receiver.url, "events": ["run.submitted", "run.cancelled"], "secret": "hush"}
    answer = api.post("/api/webhooks", json=body)
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert "hush" not in answer.text
    assert api.get("/api/webhooks").json()["webhooks"] == [made]
    assert api.get("/api/2.0/mlflow/webhooks").json() == {}  # whose clients know no such events
    assert api.post(f"/api/webhooks/{made['id']}/test").json()["success"]
    run = api.post("/api/runs", json={"spec": {"command": "true", "code": None}}).json()
    told = receiver.await_heard(2)
    assert (told[1]["entity"], told[1]["action"], told[1]["data"]["run_id"]) == ("run", "submitted", run["id"])
    assert api.delete(f"/api/webhooks/{made['id']}").status_code == 204
    assert api.get("/api/webhooks").json()["webhooks"] == []
    refused = api.post("/api/webhooks", json={**body, "events": ["run.exploded"]})
    assert refused.status_code == 422
    assert "unknown event 'run.exploded'; known: " in refused.text


@pytest.mark.parametrize("when", ["while it is sent", "before it is tried again"])
def test_a_server_that_is_killed_loses_no_event(tmp_path: Path, receiver: Receiver, when: str) -> None:
    receiver.statuses = [0] if when == "while it is sent" else [500, 500]
    tries = len(receiver.statuses)
    home = tmp_path / "home"
    with running_server(home, environ=ALLOWED) as server:
        with server.client() as client:
            add_hook(client, receiver)
            call(client, "registered-models/create", name="m")
        receiver.await_heard(tries)
        server.kill()
        again = start_server(home, environ=ALLOWED)
        try:
            told = receiver.await_heard(tries + 1)
        finally:
            again.kill()
    assert [one["data"]["name"] for one in told] == ["m"] * len(told)
    assert len(set(receiver.ids())) == 1


def test_a_server_ends_cleanly_while_it_sends(tmp_path: Path, receiver: Receiver) -> None:
    receiver.statuses = [0]
    with running_server(tmp_path / "home", environ=ALLOWED) as server:
        with server.client() as client:
            add_hook(client, receiver)
            call(client, "registered-models/create", name="m")
        receiver.await_heard(1)
        assert server.terminate() == 0


def test_the_command_line(tmp_path: Path, receiver: Receiver) -> None:
    environ = {**os.environ, "WINDLASS_HOME": str(tmp_path / "home"), "COLUMNS": "200"}

    def windlass(*words: str, stdin: str = "", expect: int = 0) -> str:
        command = [sys.executable, "-c", "from windlass.cli.main import main; main()", "webhooks", *words]
        done = subprocess.run(
            command, env=environ, input=stdin, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == expect, done
        return done.stdout + done.stderr

    with running_server(tmp_path / "home", environ=ALLOWED):
        assert "no webhooks yet" in windlass("ls")
        made = windlass(
            "add", "oncall", receiver.url, "--on", "run.alert,run.failed", "--secret-file", "-", stdin="psst\n"
        )
        assert "psst" not in made + windlass("ls", "--json")
        assert "unknown event 'run.exploded'" in windlass("add", "x", receiver.url, "--on", "run.exploded", expect=2)
        assert "run.alert, run.failed" in windlass("ls")
        assert "answered 200" in windlass("test", "oncall", "--event", "run.failed")
        [body] = receiver.await_heard(1)
        assert (body["entity"], body["action"]) == ("run", "failed")
        assert "x-mlflow-signature" in receiver.heard[0][0]
        receiver.statuses = [404]
        assert "not delivered: the receiver answered 404" in windlass("test", "oncall", expect=1)
        assert "told of nothing" in windlass("deliveries", "oncall")
        assert "did you mean 'oncall'" in windlass("rm", "oncal", expect=2)
        windlass("rm", "oncall")
        assert json.loads(windlass("ls", "--json")) == []


def test_what_became_of_deliveries(api: httpx.Client, receiver: Receiver) -> None:
    made = api.post("/api/webhooks", json={"name": "runs", "url": receiver.url, "events": ["run.submitted"]}).json()
    receiver.statuses = [400]
    spec = {"command": "true", "code": None}
    run_id = api.post("/api/runs", json={"spec": spec, "origin": {}}).json()["id"]
    [body] = receiver.await_heard(1)
    assert body["data"]["run_id"] == run_id

    def found() -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = api.get(f"/api/webhooks/{made['id']}/deliveries").json()["deliveries"]
        return answer

    deadline = time.monotonic() + PATIENCE_S
    while found()[0]["state"] == "waiting" and time.monotonic() < deadline:
        time.sleep(0.01)
    [one] = found()
    assert (one["id"], one["event"], one["state"]) == (receiver.ids()[0], "run.submitted", "failed")
    assert (one["response_status"], one["attempts"], one["due_at"]) == (400, 1, None)
    assert "body" not in one
    assert api.get("/api/webhooks/0/deliveries").status_code == 404
