"""How calls of MLflow's API are taken in and answered, whatever they do."""

from __future__ import annotations

import asyncio
import gzip
import threading
import zlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from windlass.api.mlflow.bodies import MOST_BYTES, unpacked
from windlass.api.mlflow.calls import Calls, Handler
from windlass.api.mlflow.fields import Field
from windlass.core.errors import InvalidInput, TooLarge
from windlass.traces.service import Unfinished


def ask(handler: Handler, *, content: Any = b'{"word": "x"}', **fields: Field) -> httpx.Response:
    calls = Calls()
    calls.post("/ask", **fields)(handler)
    app = Starlette(routes=calls.routes())
    app.state.services = SimpleNamespace(token=None)

    async def sent() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
            return await client.post("/api/2.0/ask", content=content, headers={"Content-Type": "application/json"})

    return asyncio.run(sent())


def test_what_was_sent_is_read_where_nobody_waits_for_it() -> None:
    seen: list[int] = []

    def read(value: Any) -> Any:
        seen.append(threading.get_ident())
        return value

    answer = ask(lambda _services, asked: {"said": asked["word"]}, word=Field(read=read, empty=""))
    assert answer.json() == {"said": "x"}
    assert seen
    assert threading.get_ident() not in seen


@pytest.mark.parametrize("body", [b"{nope", b"[]", b"5", b'"x"', b'"[1]"', b"[" * 100_000, b"\xff", b" "])
def test_a_body_that_is_no_json_object_is_not_taken_for_an_empty_one(body: bytes) -> None:
    answer = ask(lambda _services, _asked: {"done": True}, content=body, word=Field(read=str, empty=""))
    assert (answer.status_code, answer.json()["error_code"]) == (400, "BAD_REQUEST")
    assert "send a JSON object" in answer.json()["message"]


@pytest.mark.parametrize(("body", "word"), [(b"", ""), (b"null", ""), (b"{}", ""), (b'"{\\"word\\": \\"x\\"}"', "x")])
def test_what_clients_send_is_read(body: bytes, word: str) -> None:
    answer = ask(lambda _services, asked: {"word": asked["word"]}, content=body, word=Field(read=str, empty=""))
    assert answer.json() == {"word": word}


def test_a_body_that_never_ends_is_refused() -> None:
    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"x" * 1024 * 1024

    taken = 0
    answer = ask(lambda _services, _asked: {}, content=endless())
    assert (answer.status_code, answer.json()["error_code"]) == (413, "INVALID_PARAMETER_VALUE")
    assert taken <= MOST_BYTES // 1024 // 1024 + 2
    assert ask(lambda _services, _asked: {}, content=b" " * (MOST_BYTES + 1)).status_code == 413


def test_what_is_on_its_way_is_waited_for() -> None:
    asked: list[None] = []

    def answer(_services: Any, _asked: Any) -> dict[str, Any]:
        asked.append(None)
        if len(asked) < 3:
            raise Unfinished("not there yet", patience_s=60)
        return {"looks": len(asked)}

    assert ask(answer).json() == {"looks": 3}

    def never(_services: Any, _asked: Any) -> dict[str, Any]:
        raise Unfinished("not there yet")

    refused = ask(never)
    assert refused.status_code == 404
    assert "not there yet" in refused.json()["message"]


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(b"abc", mtime=0)),
        ("gzip", gzip.compress(b"a", mtime=0) + gzip.compress(b"bc", mtime=0) + b"\0\0"),
        ("deflate", zlib.compress(b"abc")),
        ("deflate", zlib.compress(b"abc", wbits=-15)),
        ("identity", b"abc"),
    ],
)
def test_packed_bodies_are_unpacked(encoding: str, body: bytes) -> None:
    assert unpacked(body, encoding, 3) == b"abc"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_what_is_small_only_while_it_is_packed_is_refused(encoding: str) -> None:
    bomb = (gzip.compress if encoding == "gzip" else zlib.compress)(b"\0" * 1_000_000)
    with pytest.raises(TooLarge):
        unpacked(bomb, encoding, 999_999)
    assert len(unpacked(bomb, encoding, 1_000_000)) == 1_000_000


@pytest.mark.parametrize(
    ("encoding", "body"), [("gzip", b"x"), ("deflate", b""), ("br", b""), ("gzip", gzip.compress(b"abc", mtime=0)[:-1])]
)
def test_what_cannot_be_unpacked_is_refused(encoding: str, body: bytes) -> None:
    with pytest.raises(InvalidInput):
        unpacked(body, encoding)
