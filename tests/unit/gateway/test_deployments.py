"""What is handed on to a deployments server, and what is not."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from windlass.core.errors import InvalidInput, Unavailable
from windlass.gateway.deployments import Deployments, check_path


class _Answering(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(200, {"endpoints": [{"name": "chat"}], "path": self.path})

    def do_POST(self) -> None:
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "broken" in self.path:
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
    ],
)
def test_nothing_else_is_asked(method: str, path: str) -> None:
    with pytest.raises(InvalidInput, match=f"Invalid gateway_path: {path} for method: {method}"):
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
