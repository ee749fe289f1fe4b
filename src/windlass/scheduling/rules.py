"""What an administrator has decided about who gets what: the policy, projects with their shares, quotas and limits, the
engines they may use. Made from the server's config; the scheduler, submission and explanations go by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from windlass.core.quantities import format_size
from windlass.scheduling.access import EngineAccess
from windlass.scheduling.core import index
from windlass.scheduling.core.fairness import needs
from windlass.scheduling.core.types import Policy, Project, Want

ENOUGH_ENDED = 30  # runs, to learn from them which are short


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    policy: Policy = field(default_factory=lambda: Policy(rank=index.rank))
    projects: Mapping[str, Project] = field(default_factory=dict)  # those that are named in the config, without usage
    access: EngineAccess = field(default_factory=EngineAccess)
    # How many runs may wait: of a project that is named, of one user, in all. None: any number.
    most_queued_of_project: Mapping[str, int] = field(default_factory=dict)
    most_queued_of_user: int | None = None
    most_queued: int | None = None

    def policy_after(self, ended: int) -> Policy:
        """Before so many runs have ended nobody knows what is short: whoever has begun goes on, and the others wait.
        Other ranks than the learned one know all they need."""
        is_known = ended >= ENOUGH_ENDED or self.policy.rank is not index.rank
        return self.policy if is_known else replace(self.policy, index_margin=None)


def over_limit(want: Want, project: str, rules: Rules) -> str | None:
    """Why this could not run even if nothing else of its project and its user did; None if it could."""
    for name in _line_of(project, rules.projects):
        whose = f"project {name}" if name == project else f"project {name}, which {project} is a part of,"
        for resource, most in rules.projects[name].limit.items():
            if (asked := _asked(want, resource)) > most:
                return f"{_asks(resource, asked)}, and {whose} may have {_amount(resource, most)} at once"
    for resource, most in rules.policy.user_limit.items():
        if (asked := _asked(want, resource)) > most:
            return f"{_asks(resource, asked)}, and a user may have {_amount(resource, most)} at once"
    return None


def _asked(want: Want, resource: str) -> float:
    return 1.0 if resource == "runs" else needs(want, resource, want.nodes)


def _asks(resource: str, amount: float) -> str:
    return "is one run" if resource == "runs" else f"asks for {_amount(resource, amount)}"


def _amount(resource: str, amount: float) -> str:
    """As it is written in the config."""
    return f"{resource}: {format_size(amount) if resource == 'memory' else f'{amount:g}'}"


def _line_of(project: str, projects: Mapping[str, Project]) -> Iterator[str]:
    """It and those above it, as far as they are named."""
    here: str | None = project
    while here is not None and here in projects:
        yield here
        here = projects[here].parent
