"""Whose turn it is between projects: what each holds and has used, as its dominant share of the cluster over its
weight, level by level of the tree of projects. And what is guaranteed to it, and what it may not exceed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from windlass.core.accelerators import is_tpu, resource_of
from windlass.scheduling.core.types import NodeState, Project, Want

Amount = tuple[float, float, float]  # GPUs, CPUs, bytes
LEAST_WEIGHT = 1e-6  # of a project that is to have what nobody else wants
# Gangs keep projects off their shares, those with small runs above and the others below: what one had too little comes
# back within about so long, but at most by so much of its weight at a time, so that nobody is put aside for it.
PAYBACK_S = 3600.0
MOST_TILT = 0.5
_NO_TYPES: Mapping[str, float] = {}


def accrue(usage: float, share: float, seconds: float, half_life_s: float) -> float:
    """Usage after so long with this dominant share: what is old fades, what is new is added."""
    fade = math.exp2(-seconds / half_life_s)
    return usage * fade + share * (1.0 - fade) * half_life_s / math.log(2)


def usual_share(project: Project, now: float, half_life_s: float) -> float:
    """The dominant share that it had on average, over about a half-life."""
    fade = math.exp2(-max(0.0, now - project.usage_at) / half_life_s)
    return project.usage * fade * math.log(2) / half_life_s


def capacity(nodes: Iterable[NodeState]) -> Amount:
    gpus = cpus = memory = 0.0
    for node in nodes:
        gpus += node.gpus
        cpus += node.cpus
        memory += node.memory_bytes
    return gpus, cpus, memory


def dominant_share(amount: Amount, whole: Amount) -> float:
    return max((part / all_of_it for part, all_of_it in zip(amount, whole, strict=True) if all_of_it), default=0.0)


class Account:
    """A project, or the root above all, with what it and those below it hold."""

    __slots__ = (
        "by_type",
        "cpus",
        "gpus",
        "limit",
        "memory",
        "name",
        "parent",
        "path",
        "pull",
        "quota",
        "runs",
        "tpus",
        "used",
        "weight",
    )

    def __init__(self, name: str, parent: Account | None, project: Project | None, used: float) -> None:
        self.name = name
        self.parent = parent
        self.path: tuple[Account, ...] = (self, *parent.path) if parent is not None else (self,)
        self.weight = max(project.weight, LEAST_WEIGHT) if project is not None else 1.0
        self.pull = self.weight  # tilted by what it had lately, see `Accounts.tilt`
        self.quota: Mapping[str, float] = project.quota if project is not None else {}
        self.limit: Mapping[str, float] = project.limit if project is not None else {}
        self.used = used
        self.gpus = self.cpus = self.memory = 0.0
        self.tpus = 0.0  # among the GPUs: an accelerator is one, whoever made it
        self.runs = 0
        self.by_type: dict[str, float] = {}

    def holds(self, resource: str) -> float:
        if resource == "gpu":
            return self.gpus - self.tpus
        if resource == "tpu":
            return self.tpus
        if resource == "cpu":
            return self.cpus
        if resource == "memory":
            return self.memory
        if resource == "runs":
            return self.runs
        return self.by_type.get(resource, 0.0)


class Accounts:
    """Of all projects that have runs or are named; and of users, where they have limits."""

    def __init__(self, projects: Iterable[Project], nodes: Iterable[NodeState], now: float, half_life_s: float) -> None:
        self._projects = {project.name: project for project in projects}
        self._now = now
        self._half_life_s = half_life_s
        whole = capacity(nodes)
        # What the cluster has not got is no share of it.
        self._gpus, self._cpus, self._memory = (amount or math.inf for amount in whole)
        self.root = Account("", None, None, 0.0)
        self._by_name: dict[str, Account] = {}
        for name in self._projects:
            self.of(name)
        self.has_quotas = any(project.quota for project in self._projects.values())
        self.has_limits = any(project.limit for project in self._projects.values())
        self.names_types = any(names_types(each.quota) or names_types(each.limit) for each in self._projects.values())

    def of(self, name: str) -> Account:
        account = self._by_name.get(name)
        return account if account is not None else self._open(name, frozenset())

    def _open(self, name: str, below: frozenset[str]) -> Account:
        project = self._projects.get(name)
        parent = self.root
        above = project.parent if project is not None else None
        if above is not None and above in self._projects and above not in below and above != name:
            known = self._by_name.get(above)
            parent = known if known is not None else self._open(above, below | {name})
        used = usual_share(project, self._now, self._half_life_s) if project is not None else 0.0
        account = self._by_name[name] = Account(name, parent, project, 0.0)
        for each in account.path:
            each.used += used
        return account

    def tilt(self, wanting: Iterable[Account]) -> None:
        """Whoever had less lately than its weight gives it, among those that want something, counts for more now."""
        below: dict[Account, list[Account]] = {}
        for each in {each for leaf in wanting for each in leaf.path[:-1]}:
            assert each.parent is not None
            below.setdefault(each.parent, []).append(each)
        lately_s = self._half_life_s / math.log(2)
        for siblings in below.values():
            weights = math.fsum(each.weight for each in siblings)
            used = math.fsum(each.used for each in siblings)
            for each in siblings:
                due = each.weight / weights
                lack = (due * used - each.used) * lately_s / (due * PAYBACK_S)
                each.pull = each.weight * (1.0 + min(MOST_TILT, max(-MOST_TILT, lack)))

    def share_of(self, want: Want, nodes: int | None = None) -> float:
        """The dominant share of the cluster that a run takes."""
        nodes = want.nodes if nodes is None else nodes
        return max(
            want.gpus * nodes / self._gpus, want.cpus * nodes / self._cpus, want.memory_bytes * nodes / self._memory
        )

    def held(self, account: Account) -> float:
        """Its dominant share of the cluster."""
        return max(account.gpus / self._gpus, account.cpus / self._cpus, account.memory / self._memory)

    def score(self, account: Account, ahead: float = 0.0) -> float:
        """Smaller is sooner: what it holds, by its weight, which what it had lately has tilted."""
        gpus, cpus, memory = account.gpus / self._gpus, account.cpus / self._cpus, account.memory / self._memory
        held = gpus if gpus > cpus else cpus
        if memory > held:
            held = memory
        return (held + ahead) / account.pull

    def charge(
        self, account: Account, want: Want, nodes: int, runs: int = 1, types: Mapping[str, float] | None = None
    ) -> None:
        """`types`: its GPUs as `gpu:h100`, of the nodes that it has; None: they are of the type that it names."""
        gpus, cpus, memory = want.gpus * nodes, want.cpus * nodes, want.memory_bytes * nodes
        if types is None:
            types = {resource_of(want.gpu_type): gpus} if want.gpu_type and gpus else _NO_TYPES
        tpus = gpus if is_tpu(want.gpu_type) else 0.0
        for each in account.path:
            each.gpus += gpus
            each.tpus += tpus
            each.cpus += cpus
            each.memory += memory
            each.runs += runs
            for resource, of_type in types.items():
                each.by_type[resource] = each.by_type.get(resource, 0.0) + of_type


def names_types(amounts: Iterable[str]) -> bool:
    """Whether one of these resources is of a type, as `gpu:h100` is."""
    return any(resource.startswith(("gpu:", "tpu:")) for resource in amounts)


def needs(want: Want, resource: str, nodes: int, types: Collection[str] | None = None) -> float:
    """`types`: what its GPUs could come to be, as `gpu:h100`, each of them all; None: of the one that it names."""
    if resource in ("gpu", "tpu"):
        return want.gpus * nodes if is_tpu(want.gpu_type) == (resource == "tpu") else 0.0
    if resource == "cpu":
        return want.cpus * nodes
    if resource == "memory":
        return want.memory_bytes * nodes
    if types is None:
        return want.gpus * nodes if want.gpu_type is not None and resource == resource_of(want.gpu_type) else 0.0
    return want.gpus * nodes if resource in types else 0.0


_EPSILON = 1e-9


def is_within(
    account: Account,
    amounts: Mapping[str, float],
    want: Want,
    nodes: int,
    runs: int = 1,
    types: Collection[str] | None = None,
) -> bool:
    """Whether what it holds stays within these amounts with so many nodes more, and runs."""
    return all(
        not (more := runs if resource == "runs" else needs(want, resource, nodes, types))
        or account.holds(resource) + more <= most + _EPSILON
        for resource, most in amounts.items()
    )


def is_covered(account: Account, want: Want, nodes: int, types: Collection[str] | None = None) -> bool:
    """Whether the quota of the project, or of one above it, guarantees this run its room. A quota that names nothing
    that the run needs guarantees it nothing."""
    return any(
        each.quota
        and any(needs(want, resource, nodes, types) for resource in each.quota)
        and is_within(each, each.quota, want, nodes, types=types)
        for each in account.path
    )


def exceeded(
    account: Account, want: Want, nodes: int, runs: int = 1, types: Collection[str] | None = None
) -> Account | None:
    """The project whose limit this would pass."""
    for each in account.path:
        if each.limit and not is_within(each, each.limit, want, nodes, runs, types):
            return each
    return None
