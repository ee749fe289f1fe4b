"""What projects have, had and should have, for people. Pure; the accounts are those that decisions go by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from windlass.scheduling.core.fairness import Account
from windlass.scheduling.outlook import Outlook


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Of one project and those below it. `held`, `lately` and `due` are shares of the cluster."""

    name: str
    parent: str | None
    weight: float
    running: int
    waiting: int
    gpus: float
    tpus: float = 0.0
    cpus: float
    memory_bytes: float
    quota: Mapping[str, float] = field(default_factory=dict)
    limit: Mapping[str, float] = field(default_factory=dict)
    held: float
    lately: float
    due: float


def shares_of(outlook: Outlook) -> list[Share]:
    """Of all projects that are named, run or wait, those above before those below."""
    waiting: Counter[str] = Counter()
    for run in outlook.waiting.values():
        if run.run_id not in outlook.starting:
            waiting.update(account.name for account in outlook.account(run.project).path[:-1])
    names = outlook.projects | {project.name for project in outlook.snapshot.projects}
    accounts = {each for name in names for each in outlook.account(name).path[:-1]}
    active = {each for each in accounts if each.runs or waiting[each.name]}
    weights: dict[Account, float] = {}
    for each in active:
        if each.parent is not None:
            weights[each.parent] = weights.get(each.parent, 0.0) + each.weight
    found = [
        _share(outlook, each, waiting[each.name], _due(each, weights) if each in active else 0.0) for each in accounts
    ]
    path = {each.name: tuple(above.name for above in reversed(each.path)) for each in accounts}
    return sorted(found, key=lambda share: path[share.name])


def _due(account: Account, weights: Mapping[Account, float]) -> float:
    due = 1.0
    for each in account.path:
        if each.parent is not None:
            due *= each.weight / weights[each.parent]
    return due


def _share(outlook: Outlook, account: Account, waiting: int, due: float) -> Share:
    return Share(
        name=account.name,
        parent=account.parent.name or None if account.parent is not None else None,
        weight=account.weight,
        running=account.runs,
        waiting=waiting,
        gpus=account.holds("gpu"),
        tpus=account.holds("tpu"),
        cpus=account.cpus,
        memory_bytes=account.memory,
        quota=account.quota,
        limit=account.limit,
        held=outlook.share_held(account),
        lately=account.used,
        due=due,
    )
