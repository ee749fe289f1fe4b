"""A cluster that is kept up to date by what happens, for those who decide often: a pass does not build anew what has
not changed. It decides what `decide` does for the same snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from windlass.core.resources import NodeShare
from windlass.scheduling.core.decide import decide_at
from windlass.scheduling.core.pool import Pool, holdings
from windlass.scheduling.core.table import Table
from windlass.scheduling.core.types import (
    Decisions,
    NodeState,
    Policy,
    Project,
    Reservation,
    Running,
    Snapshot,
    Waiting,
)


class Board:
    def __init__(self, nodes: Iterable[NodeState], projects: Iterable[Project] = (), learned: Any = None) -> None:
        self.projects = tuple(projects)
        self.learned = learned
        self.reserved: tuple[Reservation, ...] = ()  # what the last pass kept; whoever carries decisions out sets it
        self._waiting: dict[str, Waiting] = {}
        self._running: dict[str, Running] = {}
        self._nodes: tuple[NodeState, ...] = ()
        self._pool = Pool(())
        self._held: dict[int, dict[str, list[NodeShare]]] = {}  # by place and run
        self.set_nodes(nodes)

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(
            nodes=self._nodes,
            running=tuple(self._running.values()),
            waiting=tuple(self._waiting.values()),
            projects=self.projects,
            learned=self.learned,
            reserved=self.reserved,
        )

    def set_nodes(self, nodes: Iterable[NodeState]) -> None:
        """Nodes change seldom: everything that is held is held anew."""
        self._nodes = tuple(nodes)
        self._pool = Pool(self._nodes)
        self._held = {}
        for run in self._running.values():
            self._hold(run)

    def put_waiting(self, run: Waiting) -> None:
        """It waits from now on, or waits for something else."""
        self._release(run.run_id)
        self._waiting[run.run_id] = run

    def put_running(self, run: Running) -> None:
        """It runs from now on, or something about it has changed."""
        known = self._running.get(run.run_id)
        self._waiting.pop(run.run_id, None)
        if known is not None and known.placement is run.placement and known.keeps is run.keeps:
            self._running[run.run_id] = run
            return
        self._release(run.run_id)
        self._running[run.run_id] = run
        self._hold(run)

    def remove(self, run_id: str) -> None:
        self._waiting.pop(run_id, None)
        self._release(run_id)

    def decide(self, policy: Policy, now: float) -> Decisions:
        return decide_at(Table(self.snapshot, policy, now, self._pool.copy()))

    def _hold(self, run: Running) -> None:
        places = set()
        for engine, share in holdings(run):
            place = self._pool.at.get((engine, share.node))
            if place is not None:
                self._held.setdefault(place, {}).setdefault(run.run_id, []).append(share)
                places.add(place)
        self._hold_anew(places)

    def _release(self, run_id: str) -> None:
        run = self._running.pop(run_id, None)
        if run is None:
            return
        places = {place for key in holdings(run) if (place := self._pool.at.get((key[0], key[1].node))) is not None}
        for place in places:
            del self._held[place][run_id]
        self._hold_anew(places)

    def _hold_anew(self, places: Iterable[int]) -> None:
        for place in places:
            self._pool.hold_anew(place, (share for shares in self._held[place].values() for share in shares))
