"""Roles: groups of processes of one gang that do different work, such as workers and parameter servers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Processes that run the same command. The ranks of a gang belong to its roles in their order."""

    name: str
    count: int
    argv: tuple[str, ...]
    essential: bool  # an attempt is over once all processes of such roles have ended; the others are then stopped
