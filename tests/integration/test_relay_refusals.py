"""Relays whose server, or a proxy before it, answers but will not have what they send; and one on a full disk."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.away import Away, await_that, away, is_gone
from windlass.agent import layout
from windlass.blobs.snapshots import store_manifest
from windlass.engines.contract import StopKind

FOREVER = "import time; print('here', flush=True); time.sleep(600)"


class Asked(NamedTuple):
    path: str
    at: float
    size: int  # of the body


class Given(NamedTuple):
    status: int
    body: bytes


Rule = Callable[[Asked], Given | None]  # None: what the server says


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Away]:
    with away(tmp_path, f"sqlite:///{tmp_path / 'windlass.db'}") as found:
        yield found


@contextmanager
def proxy(port: int, rule: Rule) -> Iterator[str]:
    """Stands before the server at `port`, and answers in its stead where the rule says so."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            given = rule(Asked(self.path, time.monotonic(), len(data))) or self._pass_on(data)
            self.send_response(given.status)
            self.send_header("Content-Length", str(len(given.body)))
            self.end_headers()
            self.wfile.write(given.body)

        do_GET = do_POST  # noqa: N815  # the name that the base class looks for

        def _pass_on(self, data: bytes) -> Given:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            try:
                connection.request(self.command, self.path, data, dict(self.headers.items()))
                response = connection.getresponse()
                return Given(response.status, response.read())
            finally:
                connection.close()

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


def test_code_that_lacks_a_file_for_good_is_a_failed_launch(nodes: Away) -> None:
    blobs = nodes.blobs()
    contents = {"main.py": b"import lib\n", "lib.py": b"word = 'code'\n"}
    files = [
        {"path": path, "mode": 0o644, "sha256": blobs.put(text), "size": len(text)} for path, text in contents.items()
    ]
    digest, _ = store_manifest(blobs, files)
    blobs.delete(files[1]["sha256"])
    attempt = nodes.prepare("python", "main.py", code_digest=digest)
    assert nodes.start(attempt).wait(60) != 0, nodes.describe()
    ended = nodes.outcome(attempt)
    assert ended["reason"] == "launch_failed"
    assert ended["message"].endswith("is incomplete: it lacks the content of 'lib.py'")


def test_code_that_is_refused_now_and_then_is_asked_for_again(nodes: Away) -> None:
    blobs = nodes.blobs()
    text = b"print('at last')\n"
    digest, _ = store_manifest(
        blobs, [{"path": "main.py", "mode": 0o644, "sha256": blobs.put(text), "size": len(text)}]
    )
    attempt = nodes.prepare("python", "main.py", code_digest=digest)
    answers = iter([Given(404, b'{"code": "not_found", "message": "not yet"}')] * 2)

    def rule(asked: Asked) -> Given | None:
        return next(answers, None) if asked.path.endswith("/code") else None

    with proxy(nodes.port, rule) as url:
        assert nodes.start(attempt, environ={"WINDLASS_SERVER": url}).wait(60) == 0, nodes.describe()
    assert nodes.texts(attempt) == ["at last"]


def test_a_proxy_that_misses_its_server_is_waited_for(nodes: Away) -> None:
    """Its pages say nothing about the node, and there may be any number of them."""
    attempt = nodes.prepare("python", "-c", "print('through')")
    gateway = Given(404, b'{"message": "no Route matched with those values"}')
    pages = iter([Given(404, b"<html>default backend</html>")] + [gateway] * 11)

    def rule(asked: Asked) -> Given | None:
        return next(pages, None) if asked.path.endswith("/report") else None

    with proxy(nodes.port, rule) as url:
        assert nodes.start(attempt, environ={"WINDLASS_SERVER": url}).wait(120) == 0, nodes.describe()
    assert nodes.texts(attempt) == ["through"]


def test_a_proxy_with_a_limit_gets_smaller_reports(nodes: Away) -> None:
    lines = 20_000
    attempt = nodes.prepare("python", "-c", f"print('\\n'.join(['x' * 99] * {lines}))")

    def rule(asked: Asked) -> Given | None:
        return Given(413, b"<html>Request Entity Too Large</html>") if asked.size > 300_000 else None

    with proxy(nodes.port, rule) as url:
        assert nodes.start(attempt, environ={"WINDLASS_SERVER": url}).wait(120) == 0, nodes.describe()
    assert nodes.texts(attempt) == ["x" * 99] * lines


def test_a_node_whose_reports_are_never_taken_ends_with_a_failed_launch(nodes: Away) -> None:
    attempt = nodes.prepare("python", "-c", FOREVER)
    refused = 0

    def rule(asked: Asked) -> Given | None:
        nonlocal refused
        if not asked.path.endswith("/report") or refused >= 10:
            return None  # the eleventh is the outcome alone
        refused += 1
        return Given(413, b"<html>Request Entity Too Large</html>")

    with proxy(nodes.port, rule) as url:
        assert nodes.start(attempt, environ={"WINDLASS_SERVER": url}).wait(120) != 0, nodes.describe()
    ended = nodes.outcome(attempt)
    assert (ended["reason"], refused) == ("launch_failed", 10)
    assert "the server refuses what this node reports: 413" in ended["message"]


def test_a_node_whose_reports_are_refused_from_some_time_on_is_lost_with_its_ranks(nodes: Away) -> None:
    attempt = nodes.prepare("python", "-c", FOREVER)
    relay = nodes.start(attempt)
    rank = nodes.running(attempt)["ranks"][0]["pid"]
    folder = next((nodes.folder / "tmp").rglob(layout.STATUS)).parent
    (folder / layout.NOTICE).write_text(json.dumps({"message": 7}))  # a program may write what it likes
    assert relay.wait(120) != 0, nodes.describe()
    assert is_gone(rank)
    ended = nodes.outcome(attempt)
    assert ended["reason"] == "lost"
    assert "the server refuses what this node reports: 422" in ended["message"]


def test_a_hello_is_said_again_when_the_server_wants_it(nodes: Away) -> None:
    attempt = nodes.prepare("python", "-c", "print('hello')")
    hellos: list[float] = []

    def rule(asked: Asked) -> Given | None:
        if not asked.path.endswith("/hello"):
            return None
        hellos.append(asked.at)
        return Given(202, b'{"wait_s": 1.5, "missing": [1]}') if len(hellos) == 1 else None

    with proxy(nodes.port, rule) as url:
        assert nodes.start(attempt, environ={"WINDLASS_SERVER": url}).wait(60) == 0, nodes.describe()
    assert len(hellos) == 2
    assert hellos[1] - hellos[0] >= 1.5


# ---- a full disk --------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                return


def test_a_wish_to_stop_arrives_on_a_full_disk(small_disk: Path, nodes: Away) -> None:
    attempt = nodes.prepare("python", "-c", FOREVER, grace_s=5.0)
    relay = nodes.start(attempt, environ={"WINDLASS_NODE_HOME": str(small_disk)})
    rank = nodes.running(attempt)["ranks"][0]["pid"]
    await_that(lambda: nodes.texts(attempt) == ["here"], nodes.describe)
    fill(small_disk)
    nodes.book.wish_to_stop(attempt, grace_s=5.0, kind=StopKind.CANCELLED, reason="cancelled on request")
    assert relay.wait(60) != 0, nodes.describe()
    assert is_gone(rank)
    assert "the wish to stop cannot be written" in nodes.describe()
    assert nodes.outcome(attempt)["reason"] in ("cancelled", "preempted")  # the signal alone has no kind
