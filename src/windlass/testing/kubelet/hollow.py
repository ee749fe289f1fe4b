"""A node's agent without a node: what the server would hear from a run that starts, and completes at once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx

from windlass.agent import outcome

_AT_ONCE = 4
_AGENTS = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="hollow")
_TRY_EVERY_S = 0.2


class HollowAgent:
    def __init__(self, env: Mapping[str, str]) -> None:
        self._future: Future[int] = _AGENTS.submit(_run, dict(env))

    def exit_code(self) -> int | None:
        return self._future.result() if self._future.done() else None


def _run(env: Mapping[str, str]) -> int:
    """As `windlass.agent.relay` does, with nothing in between."""
    base = f"{env['WINDLASS_SERVER']}/api/nodes/{env['WINDLASS_NODE_ATTEMPT']}/{env['WINDLASS_NODE_RANK']}"
    headers = {"Authorization": f"Bearer {env['WINDLASS_NODE_TOKEN']}"}
    incarnation = env["WINDLASS_NODE_ATTEMPT"].replace(".", "-")
    hello = {"incarnation": incarnation, "address": env["WINDLASS_NODE_ADDR"], "port": 29_500, "host": "hollow"}
    with httpx.Client(headers=headers, timeout=60.0, trust_env=False) as client:
        if _post(client, f"{base}/hello", json=hello) != 200:
            return 1
        now = time.time()
        ended = outcome.summary(reason="completed", message="", started_at=now, ended_at=now)
        report = {"incarnation": incarnation, "status": {"state": "running", "started_at": now}, "outcome": ended}
        return 0 if _post(client, f"{base}/report", json=report) == 200 else 1


def _post(client: httpx.Client, url: str, json: Any) -> int:
    while True:
        try:
            status = client.post(url, json=json).status_code
        except httpx.TransportError:
            status = 503
        if status not in (202, 503):
            return status
        time.sleep(_TRY_EVERY_S)
