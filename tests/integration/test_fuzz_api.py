"""Requests made up from our own OpenAPI description: no server errors, no hangs, answers as described."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from windlass.core.exits import Exit, ExitReason
from windlass.core.resources import Node
from windlass.db.database import Database
from windlass.runs import store
from windlass.runs.records import exit_to_json
from windlass.runs.types import EventKind
from windlass.scheduling.nodes import commit_nodes
from windlass.server.compose import compose
from windlass.server.homefolder import prepare
from windlass.server.settings import Role, Settings
from windlass.testing.servers import serving

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
SLOWEST_S = 10.0
NOT_HTTP = b"Invalid HTTP request received."  # the HTTP parser's own words, for a URL of half a megabyte for example
STREAMS = ("/logs", "/events", "/stream")


@schemathesis.serializer("application/x-tar")
def _tar(_context: Any, value: Any) -> bytes:
    """Whatever was made up, as it is: no made-up bytes are a tar, and the API has to say so."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


class Fuzzed:
    """A served API with a run that waits and one that has succeeded: streams of the latter come to an end."""

    def __init__(self, url: str, token: str, waiting: str, succeeded: str) -> None:
        self.url, self.waiting, self.succeeded = url, waiting, succeeded
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.headers["Authorization"] = f"Bearer {token}"
        self.schema = schemathesis.openapi.from_dict(self.session.get(f"{url}/openapi.json").json())

    def fuzz(self, *, examples: int) -> int:
        """Every operation, with requests as described and with requests that are not; gives how many were made."""
        made = 0
        for result in self.schema.get_all_operations():
            operation = result.ok()
            made += self._fuzz_one(operation.as_strategy(generation_mode=GenerationMode.POSITIVE), examples=examples)
            if list(operation.iter_parameters()) or list(operation.body):  # without them nothing can be wrong
                wrong = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
                made += self._fuzz_one(wrong, examples=examples)
        return made

    def _fuzz_one(self, cases: st.SearchStrategy[Any], *, examples: int) -> int:
        made = 0

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=cases, known=st.booleans())
        def check(case: Case, known: bool) -> None:
            nonlocal made
            made += 1
            self._aim(case, known=known)
            answer = case.call(base_url=self.url, session=self.session, timeout=SLOWEST_S)
            if answer.status_code == 400 and answer.content == NOT_HTTP:
                return
            case.validate_response(answer, checks=CHECKS)

        check()
        return made

    def _aim(self, case: Case, *, known: bool) -> None:
        """Half of the requests are about a run that is there. What may be followed must come to an end: a made-up name
        could be the short form of a run that waits, and such a stream is meant to go on."""
        if not case.path_parameters or "ref" not in case.path_parameters:
            return
        follows = case.operation.path.endswith(STREAMS)
        if known:
            case.path_parameters["ref"] = self.succeeded if follows else self.waiting
        elif follows:
            case.path_parameters["ref"] = f"~{case.path_parameters['ref']}"  # no id or name begins like this


def submit(client: Any, name: str) -> str:
    body = {"spec": {"command": "true", "code": None, "name": name, "params": {"lr": 1}}}
    return str(client.post("/api/runs", json=body).json()["id"])


def succeed(db: Database, run_id: str) -> None:
    ended = {"ended_at": 2.0, "exit": exit_to_json(Exit(reason=ExitReason.COMPLETED))}
    for kind, changes in (
        (EventKind.PLACED, {}),
        (EventKind.STARTED, {"started_at": 1.0}),
        (EventKind.SUCCEEDED, ended),
    ):
        with db.write() as tx:
            run = store.load_run(tx, run_id)
            assert run is not None
            store.advance(tx, run, kind, now=1.0, message="made up", **changes)


@pytest.fixture
def fuzzed(tmp_path: Path, database_url: str) -> Iterator[Fuzzed]:
    home = tmp_path / "home"
    prepare(home)
    parts = compose(Settings(home=home, database_url=database_url, role=Role.API))
    with parts.db.write() as tx:
        commit_nodes(tx, "fake", [Node(engine="fake", name="n", cpus=64, memory_bytes=10**12, gpus=8)], now=1.0)
    with serving(parts) as client:
        waiting, succeeded = submit(client, "waiting"), submit(client, "done")
        succeed(parts.db, succeeded)
        found = Fuzzed(str(client.base_url), str(parts.services.token), waiting, succeeded)
        yield found
        found.session.close()
    parts.db.close()


def test_made_up_requests_get_proper_answers(fuzzed: Fuzzed) -> None:
    assert fuzzed.fuzz(examples=2) > 100


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_many_made_up_requests_get_proper_answers(fuzzed: Fuzzed) -> None:
    assert fuzzed.fuzz(examples=25) > 1_000
