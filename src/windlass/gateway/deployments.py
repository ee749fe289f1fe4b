"""Handing calls of MLflow's pages on to a deployments server, which whoever runs this server has named. It has models
of its own; nothing of the gateway's endpoints here is known to it.
"""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPResponse
from typing import Any

from windlass.core.errors import InvalidInput, Unavailable

_LIST = "api/2.0/endpoints"
_CALL = re.compile(r"gateway/(?!\.+/)[\w.-]+/invocations", re.ASCII)
_PATIENCE_S = 120.0
_MOST_CALLS = 8  # of the server's 40 threads
_MOST_BYTES = 32 << 20
_PART = 1 << 16


class Deployments:
    def __init__(self, target: str | None, *, patience_s: float = _PATIENCE_S, most_calls: int = _MOST_CALLS) -> None:
        """`target`: the address of the deployments server; None if there is none."""
        self._target = target.rstrip("/") if target else None
        self._patience_s = patience_s
        self._most_calls = most_calls
        self._calls = threading.BoundedSemaphore(most_calls)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """What it answers. Without one, there are no endpoints. Raises InvalidInput for what is not to be asked, and
        Unavailable; that also while as many others ask as may: models can take long, and who waits for them holds a
        thread of the server."""
        if self._target is None:
            return {"endpoints": []}
        check_path(method, path)
        if not self._calls.acquire(blocking=False):
            raise Unavailable(
                f"the deployments server is being asked already, by {self._most_calls} at once",
                hint="try again in a moment",
            )
        try:
            return self._ask(f"{self._target}/{path.strip('/')}", method, body)
        except (OSError, ValueError, HTTPException) as error:
            said = str(error) or type(error).__name__
            raise Unavailable(f"the deployments server at {self._target} cannot be asked: {said}") from error
        finally:
            self._calls.release()

    def _ask(self, url: str, method: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if data is not None else {}
        request = urllib.request.Request(url, data, headers, method=method)
        deadline = time.monotonic() + self._patience_s
        try:
            with urllib.request.urlopen(request, timeout=self._patience_s) as answer:
                return json.loads(_read(answer, deadline))
        except urllib.error.HTTPError as error:
            said = error.read(10_000).decode(errors="replace")
            message = f"Deployments proxy request failed with error code {error.code}. Error message: {said}"
            raise (InvalidInput if error.code < 500 else Unavailable)(message) from error


def _read(answer: HTTPResponse, deadline: float) -> bytes:
    """All of it. The socket's own patience begins anew with each byte, so one that sends them slowly needs another."""
    found = bytearray()
    while part := answer.read1(_PART):
        found += part
        if len(found) > _MOST_BYTES:
            raise ValueError(f"its answer has more than {_MOST_BYTES >> 20} MiB")
        if time.monotonic() > deadline:
            raise TimeoutError("its answer takes too long")
    return bytes(found)


def check_path(method: str, path: str) -> None:
    """Only what lists endpoints and calls one: everything else of that server is nobody's business. Pure."""
    if not path:
        raise InvalidInput("Deployments proxy request must specify a gateway_path.")
    plain = path.strip("/")
    if not (plain == _LIST if method == "GET" else _CALL.fullmatch(plain)):
        raise InvalidInput(f"Invalid gateway_path: {path} for method: {method}")
