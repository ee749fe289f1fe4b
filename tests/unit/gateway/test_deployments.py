"""What is handed on to a deployments server, and what is not."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from windlass.core.errors import InvalidInput, Unavailable
from windlass.gateway.deployments import Deployments, check_path

_entered, _leave, _never = threading.Event(), threading.Event(), threading.Event()


class _Answering(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(200, {"endpoints": [{"name": "chat"}], "path": self.path})

    def do_POST(self) -> None:
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "odd" in self.path:
            self.wfile.write(b"what?\r\n")
        elif "slow" in self.path:
            self._answer_slowly()
        elif "waits" in self.path:
            _entered.set()
            assert _leave.wait(60)
            self._answer(200, {})
        elif "broken" in self.path:
            self._answer(503, {"detail": "no model"})
        elif sent == {"prompt": ""}:
            self._answer(422, {"detail": "empty"})
        else:
            self._answer(200, {"said": sent, "path": self.path})

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _answer_slowly(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "3002")
        self.end_headers()
        with contextlib.suppress(OSError):  # nobody listens any more
            for part in (b"[", *[b" "] * 3000, b"]"):
                self.wfile.write(part)
                _never.wait(0.01)

    def log_message(self, *_said: object) -> None:
        pass


@pytest.fixture
def target() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answering) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_without_one_there_are_no_endpoints() -> None:
    assert Deployments(None).ask("GET", "anything/at/all") == {"endpoints": []}


def test_lists_and_calls_are_handed_on(target: str) -> None:
    deployments = Deployments(target)
    assert deployments.ask("GET", "/api/2.0/endpoints/") == {
        "endpoints": [{"name": "chat"}],
        "path": "/api/2.0/endpoints",
    }
    said = deployments.ask("POST", "gateway/chat/invocations", {"prompt": "hi"})
    assert said == {"said": {"prompt": "hi"}, "path": "/gateway/chat/invocations"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "api/2.0/secrets"),
        ("GET", "gateway/chat/invocations"),
        ("POST", "api/2.0/endpoints"),
        ("POST", "foo/bar"),
        ("POST", "gateway/a/b/invocations"),
        ("POST", "gateway/../../invocations"),
        ("POST", "gateway/../invocations"),
        ("POST", "gateway/x?/invocations"),
        ("POST", "gateway/x%2Fy/invocations"),
        ("POST", "gateway/x\n/invocations"),
    ],
)
def test_nothing_else_is_asked(method: str, path: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(f"Invalid gateway_path: {path} for method: {method}")):
        check_path(method, path)


def test_a_path_there_must_be() -> None:
    with pytest.raises(InvalidInput, match="must specify a gateway_path"):
        Deployments("http://127.0.0.1:9").ask("POST", "")


def test_what_it_refuses_is_told(target: str) -> None:
    with pytest.raises(InvalidInput, match=r"error code 422\. Error message: .*empty"):
        Deployments(target).ask("POST", "gateway/chat/invocations", {"prompt": ""})
    with pytest.raises(Unavailable, match=r"error code 503\. Error message: .*no model"):
        Deployments(target).ask("POST", "gateway/broken/invocations", {"prompt": "hi"})


def test_one_that_is_not_there_is_named() -> None:
    with pytest.raises(Unavailable, match=r"the deployments server at http://127\.0\.0\.1:9 cannot be asked"):
        Deployments("http://127.0.0.1:9").ask("GET", "api/2.0/endpoints")


def test_one_that_does_not_speak_http_is_named(target: str) -> None:
    with pytest.raises(Unavailable, match="cannot be asked: what"):
        Deployments(target).ask("POST", "gateway/odd/invocations", {})
    with pytest.raises(Unavailable, match="cannot be asked"):
        Deployments("http://no host").ask("GET", "api/2.0/endpoints")
    with pytest.raises(Unavailable, match="cannot be asked"):
        Deployments("nowhere").ask("GET", "api/2.0/endpoints")


def test_one_that_answers_byte_by_byte_is_given_up(target: str) -> None:
    with pytest.raises(Unavailable, match="cannot be asked"):
        Deployments(target, patience_s=0.3).ask("POST", "gateway/slow/invocations", {})


def test_only_some_wait_at_once(target: str) -> None:
    deployments = Deployments(target, most_calls=1)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(deployments.ask, "POST", "gateway/waits/invocations", {})
        try:
            assert _entered.wait(60)
            with pytest.raises(Unavailable, match="asked already, by 1 at once"):
                deployments.ask("GET", "api/2.0/endpoints")
        finally:
            _leave.set()
        assert first.result() == {}
    assert deployments.ask("GET", "api/2.0/endpoints")["endpoints"]
