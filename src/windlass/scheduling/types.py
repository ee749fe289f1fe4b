"""Nodes that are set aside, and kinds of nodes. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.core.resources import Node

NodeKey = tuple[str, str]  # engine and name


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """Why a node is not to be used, and until when."""

    reason: str
    since: float
    until: float | None  # None: until somebody gives it back
    times: int = 1  # in a row
    by_hand: bool = False
    run_id: str | None = None

    def holds(self, now: float) -> bool:
        return self.until is None or now < self.until


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """Nodes of one engine that differ in nothing but their names."""

    node: Node  # the first of them
    count: int
