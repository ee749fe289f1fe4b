"""A hundred thousand finished runs, written straight into a database: what a server has after a few busy months."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from sqlalchemy import Table, insert

from windlass.core.exits import Exit, ExitReason
from windlass.core.ids import attempt_id, new_run_id
from windlass.core.resources import Node, NodeShare, Placement
from windlass.db.database import Database
from windlass.db.migrate import migrate
from windlass.runs.submission import new_run
from windlass.runs.tables import attempts, events, runs
from windlass.runs.types import AttemptState, EventKind, RunState
from windlass.scheduling.types import NodeKind
from windlass.tracking.tables import progress, summaries
from windlass.wire.runs import GitState, Origin
from windlass.wire.spec import parse_spec

_BATCH = 2_000
_STATES = {RunState.SUCCEEDED: 85, RunState.FAILED: 10, RunState.CANCELLED: 5}
_EXITS = {
    RunState.SUCCEEDED: Exit(reason=ExitReason.COMPLETED, exit_code=0),
    RunState.FAILED: Exit(reason=ExitReason.EXIT_CODE, exit_code=1, rank=0, message="ValueError: loss is nan"),
    RunState.CANCELLED: Exit(reason=ExitReason.CANCELLED, message="cancelled on request"),
}
_ENDS = {
    RunState.SUCCEEDED: EventKind.SUCCEEDED,
    RunState.FAILED: EventKind.FAILED,
    RunState.CANCELLED: EventKind.CANCELLED,
}
_ORIGIN = Origin(
    host="login-1",
    user="researcher",
    cwd="/home/researcher/project",
    client="windlass 0.1.0",
    search_path="/home/researcher/project/.venv/bin:/usr/local/bin:/usr/bin:/bin",
    env={"VIRTUAL_ENV": "/home/researcher/project/.venv", "LANG": "en_US.UTF-8"},
    git=GitState(commit="4f2a" * 10, branch="main", remote="https://git.example/project.git"),
)
SPEC: dict[str, Any] = {
    "script": "train.py",
    "args": ["--config", "configs/small.yaml"],
    "params": {"lr": 3e-4, "batch": 64, "layers": 12, "width": 768},
    "resources": {"cpus": 1},
    "tags": {"team": "language", "stage": "ablation"},
}


def fill(database_url: str, nodes: tuple[Node, ...], *, count: int, until: float) -> list[str]:
    """Bring the database to the current schema and insert finished runs, one a minute up to `until`. Their ids."""
    database = Database(database_url)
    try:
        migrate(database)
        ids: list[str] = []
        for first in range(0, count, _BATCH):
            rows = _Rows()
            ids += [
                rows.add(nodes, number, submitted_at=until - (count - number) * 60.0)
                for number in range(first, min(first + _BATCH, count))
            ]
            with database.write() as tx:
                for table, values in rows.tables():
                    tx.execute(insert(table), values)
        return ids
    finally:
        database.close()


class _Rows:
    def __init__(self) -> None:
        self._rows: dict[Table, list[dict[str, Any]]] = {
            table: [] for table in (runs, attempts, events, summaries, progress)
        }

    def tables(self) -> Iterator[tuple[Table, list[dict[str, Any]]]]:
        yield from self._rows.items()

    def add(self, nodes: tuple[Node, ...], number: int, *, submitted_at: float) -> str:
        """One run with its attempt, events, metric summaries and progress. The same numbers give the same run."""
        chance = random.Random(number)
        run_id = new_run_id()
        state = chance.choices(list(_STATES), list(_STATES.values()))[0]
        started_at = submitted_at + chance.uniform(0.1, 5.0)
        ended_at = started_at + chance.uniform(30.0, 7200.0)
        hours = (ended_at - started_at) / 3600
        spec = parse_spec(
            {**SPEC, "name": f"ablation-{chance.randrange(500)}", "project": f"team-{chance.randrange(20)}"}
        )
        kinds = [NodeKind(node=node, count=1) for node in nodes]
        row = new_run(
            spec, kinds, code_digest="ab" * 32, origin=_ORIGIN.model_dump(mode="json"), user=None, now=submitted_at
        )
        exit = asdict(_EXITS[state])
        row |= {"id": run_id, "state": state, "version": 4, "started_at": started_at, "ended_at": ended_at}
        row |= {"attempt_count": 1, "exit": exit, "cpu_hours": hours, "cost_usd": hours * 0.04}
        self._rows[runs].append(row)
        self._add_attempt(run_id, nodes[number % len(nodes)], exit, submitted_at, started_at, ended_at)
        self._add_events(run_id, _ENDS[state], (submitted_at, submitted_at, started_at, ended_at, ended_at))
        self._add_metrics(run_id, chance, started_at, ended_at)
        return run_id

    def _add_attempt(
        self, run_id: str, node: Node, exit: dict[str, Any], placed_at: float, started_at: float, ended_at: float
    ) -> None:
        placement = Placement(engine=node.engine, shares=(NodeShare(node=node.name, cpus=1.0, memory_bytes=0),))
        self._rows[attempts].append(
            {
                "id": attempt_id(run_id, 1),
                "run_id": run_id,
                "number": 1,
                "state": AttemptState.ENDED,
                "engine": node.engine,
                "placement": asdict(placement),
                "created_at": placed_at,
                "started_at": started_at,
                "ended_at": ended_at,
                "released_at": ended_at,
                "exit": exit,
                "log_dirs": [f"/var/lib/windlass/runs/{run_id}/attempt-1/node-0"],
                "usage": {"cpu_percent": 97.0, "rss_bytes": 2 << 30, "gpus": [], "ranks": []},
            }
        )

    def _add_events(self, run_id: str, end: EventKind, times: tuple[float, ...]) -> None:
        kinds = (EventKind.SUBMITTED, EventKind.PLACED, EventKind.STARTED, EventKind.ATTEMPT_ENDED, end)
        for kind, at in zip(kinds, times, strict=True):
            attempt = None if kind is EventKind.SUBMITTED else 1
            self._rows[events].append(
                {"run_id": run_id, "attempt": attempt, "kind": kind, "at": at, "message": str(kind), "data": {}}
            )

    def _add_metrics(self, run_id: str, chance: random.Random, started_at: float, ended_at: float) -> None:
        for name in ("loss", "accuracy"):
            row = {"run_id": run_id, "name": name, "last": chance.random(), "min": 0.0, "max": 1.0}
            self._rows[summaries].append({**row, "last_step": 1000, "points": 1000})
        self._rows[progress].append(
            {"run_id": run_id, "step": 1000, "total": 1000, "at": ended_at, "first_step": 1, "first_at": started_at}
        )
