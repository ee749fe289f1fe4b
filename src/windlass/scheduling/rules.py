"""What an administrator has decided about who gets what: the policy, projects with their shares, quotas and limits, the
engines they may use. Made from the server's config; the scheduler, submission and explanations go by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from windlass.scheduling.access import EngineAccess
from windlass.scheduling.core import index
from windlass.scheduling.core.types import Policy, Project


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    policy: Policy = field(default_factory=lambda: Policy(rank=index.rank))
    projects: Mapping[str, Project] = field(default_factory=dict)  # those that are named in the config, without usage
    access: EngineAccess = field(default_factory=EngineAccess)
    # How many runs may wait: of a project that is named, of one user, in all. None: any number.
    most_queued_of_project: Mapping[str, int] = field(default_factory=dict)
    most_queued_of_user: int | None = None
    most_queued: int | None = None
