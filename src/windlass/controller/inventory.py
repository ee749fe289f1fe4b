"""What engines say they have, and whether they say anything: kept in the database for scheduler, API and people.

Written only when something has changed, and every now and then so that its age can be seen.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping

from sqlalchemy import Connection

from windlass.core.clock import is_due
from windlass.core.errors import Unavailable
from windlass.core.resources import Node
from windlass.engines.contract import Engine
from windlass.scheduling.engines import EngineState, commit_engines, decide_state
from windlass.scheduling.nodes import commit_nodes, forget_others

log = logging.getLogger(__name__)

ASK_EVERY_S = 5.0
WRITE_EVERY_S = 30.0


class Inventory:
    """Not thread-safe: one controller loop owns it. Losing it costs asking again."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._engines = engines
        self._nodes: dict[str, tuple[Node, ...]] = {}
        self._states: dict[str, EngineState] = {}
        self._problems: dict[str, str] = {}  # by engine, since it answered last
        self._ask_at = 0.0
        self._write_at = 0.0

    @contextlib.contextmanager
    def asking(self, name: str) -> Iterator[None]:
        """Around every call of an engine: one that is away is asked again in the next pass, and the others do not wait
        for it."""
        try:
            yield
        except Unavailable as error:
            if name not in self._problems:
                log.warning("engine %s cannot be asked now: %s", name, error)
            self._problems[name] = error.message.strip().partition("\n")[0]  # tools say more than fits a table
        except Exception:
            # A defect of the engine, or of what it found: its business, not that of the runs on others.
            log.exception("engine %s fails at what it was asked", name)

    def heard(self, name: str) -> None:
        """It has answered something that it could only know by being in touch with its nodes."""
        if self._problems.pop(name, None) is not None:
            log.info("engine %s can be asked again", name)

    def is_away(self, name: str) -> bool:
        return name in self._problems

    def why_away(self, name: str) -> str:
        return self._problems.get(name, "")

    def hurry(self) -> None:
        """A node may be gone: what was known of nodes is not to be relied on."""
        self._ask_at = 0.0

    @property
    def is_doubtful(self) -> bool:
        return self._ask_at == 0.0

    def refresh(self, now: float) -> bool:
        """Ask if it is time to; whether there is something to write."""
        if not is_due(self._ask_at, now, every_s=ASK_EVERY_S) and not self._problems:
            return False
        self._ask_at = now + ASK_EVERY_S
        nodes = dict(self._nodes)
        for name, engine in self._engines.items():
            with self.asking(name):
                nodes[name] = tuple(engine.inventory())
                self.heard(name)
        states = {
            name: decide_state(self._states.get(name), engine.type, self._problems.get(name), now=now)
            for name, engine in self._engines.items()
        }
        changed = nodes != self._nodes or _reachable(states) != _reachable(self._states)
        self._nodes, self._states = nodes, states
        return changed or is_due(self._write_at, now, every_s=WRITE_EVERY_S)

    def commit(self, tx: Connection, now: float) -> None:
        for name, nodes in self._nodes.items():
            commit_nodes(tx, name, nodes, now=now)
        forget_others(tx, self._engines.keys())
        commit_engines(tx, self._states)
        self._write_at = now + WRITE_EVERY_S


def _reachable(states: Mapping[str, EngineState]) -> dict[str, bool]:
    return {name: state.unreachable_since is None for name, state in states.items()}
