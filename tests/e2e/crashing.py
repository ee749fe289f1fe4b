"""A server that dies at a chosen commit, and a user who carries on regardless: what the crash tests are made of."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from windlass.db.faults import VARIABLE
from windlass.runs.types import STATE_AFTER, TRANSITIONS, EventKind, RunState
from windlass.testing.servers import ServerProcess, end_processes_of, start_server

TERMINAL = [state for state in RunState if state.is_terminal]


@dataclass
class Persistent:
    """Sends requests until they are answered: when the server dies, starts another one (that is meant to live)."""

    home: Path
    fault: str
    crashes: int = 0
    server: ServerProcess | None = None

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                server = self._living()
                with server.client(timeout_s=20) as client:
                    return client.request(method, path, **options)
            except httpx.TransportError:
                time.sleep(0.02)
        raise TimeoutError(f"{method} {path} was never answered")

    def json(self, method: str, path: str, **options: Any) -> Any:
        response = self.request(method, path, **options)
        assert response.is_success, response.text
        return response.json()

    def submit(self, spec: dict[str, Any], key: str) -> str:
        body = {"spec": spec, "origin": {"search_path": "/usr/local/bin:/usr/bin:/bin"}}
        run_id: str = self.json("POST", "/api/runs", json=body, headers={"Idempotency-Key": key})["id"]
        return run_id

    def until(
        self, run_id: str, condition: Callable[[dict[str, Any]], bool], timeout_s: float = 60.0
    ) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            run: dict[str, Any] = self.json("GET", f"/api/runs/{run_id}")
            if condition(run):
                return run
            time.sleep(0.02)
        raise TimeoutError(f"run {run_id} is {run['state']}: {run}")

    def until_over(self, run_id: str) -> dict[str, Any]:
        return self.until(run_id, lambda run: run["state"] in TERMINAL)

    def close(self) -> None:
        if self.server and self.server.process.poll() is None:
            self.server.kill()
        end_processes_of(self.home)

    def _living(self) -> ServerProcess:
        if self.server is not None and self.server.process.poll() is None:
            return self.server
        first = self.server is None and self.crashes == 0
        try:
            self.server = start_server(self.home, environ={VARIABLE: self.fault} if first else {})
        except RuntimeError:
            # It died while starting: that was a commit too.
            if not first:
                raise
            self.crashes += 1
            self.server = start_server(self.home)
            return self.server
        if not first:
            self.crashes += 1
        return self.server


def check_record(user: Persistent, run_id: str) -> list[str]:
    """The events tell the run's state, change by change as the table allows. Returns their kinds."""
    run = user.json("GET", f"/api/runs/{run_id}")
    events = user.json("GET", f"/api/runs/{run_id}/events")["events"]
    kinds = [event["kind"] for event in events]
    states = [STATE_AFTER[EventKind(kind)] for kind in kinds if EventKind(kind) in STATE_AFTER]
    assert states[0] is RunState.QUEUED
    for before, after in itertools.pairwise(states):
        assert after in TRANSITIONS[before], kinds
    assert states[-1] == run["state"], (kinds, run["state"])
    attempts = user.json("GET", f"/api/runs/{run_id}/attempts")["attempts"]
    assert [attempt["number"] for attempt in attempts] == list(range(1, len(attempts) + 1))
    assert run["attempts"] == len(attempts)
    if run["state"] in TERMINAL:
        assert all(attempt["state"] == "ended" and attempt["exit"] for attempt in attempts)
        assert kinds.count("attempt_ended") == len(attempts)
    return kinds
