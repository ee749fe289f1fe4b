"""Handing calls of MLflow's pages on to a deployments server, which whoever runs this server has named. It has models
of its own; nothing of the gateway's endpoints here is known to it.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from typing import Any

from windlass.core.errors import InvalidInput, Unavailable

_LIST = "api/2.0/endpoints"
_CALL = re.compile(r"gateway/[^/]+/invocations")
_PATIENCE_S = 120.0
_MOST_BYTES = 32 << 20


class Deployments:
    def __init__(self, target: str | None) -> None:
        """`target`: the address of the deployments server; None if there is none."""
        self._target = target.rstrip("/") if target else None

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """What it answers. Without one, there are no endpoints. Raises InvalidInput for what is not to be asked, and
        Unavailable."""
        if self._target is None:
            return {"endpoints": []}
        check_path(method, path)
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if data is not None else {}
        request = urllib.request.Request(f"{self._target}/{path.strip('/')}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
                return json.loads(answer.read(_MOST_BYTES))
        except urllib.error.HTTPError as error:
            said = error.read(10_000).decode(errors="replace")
            message = f"Deployments proxy request failed with error code {error.code}. Error message: {said}"
            raise (InvalidInput if error.code < 500 else Unavailable)(message) from error
        except (OSError, ValueError) as error:
            raise Unavailable(f"the deployments server at {self._target} cannot be asked: {error}") from error


def check_path(method: str, path: str) -> None:
    """Only what lists endpoints and calls one: everything else of that server is nobody's business. Pure."""
    if not path:
        raise InvalidInput("Deployments proxy request must specify a gateway_path.")
    plain = path.strip("/")
    if not (plain == _LIST if method == "GET" else _CALL.fullmatch(plain)):
        raise InvalidInput(f"Invalid gateway_path: {path} for method: {method}")
