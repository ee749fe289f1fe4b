"""Why a run waits, in words: one sentence, and what there is to know besides. Pure; what is the case is found by
`outlook`, with the same rules as the decision itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from windlass.core.accelerators import ANY_TPU, is_tpu, resource_of, serves, title_of
from windlass.core.quantities import format_roughly, format_size
from windlass.scheduling.amounts import (
    clock_time,
    count_runs,
    describe_amount,
    describe_each,
    describe_want,
    listing,
)
from windlass.scheduling.core.fairness import needs
from windlass.scheduling.core.pool import holdings
from windlass.scheduling.core.preempt import protected_until
from windlass.scheduling.core.types import NodeState, Running, Waiting, Want
from windlass.scheduling.outlook import Hindrance, Lack, Obstacle, Outlook, Short
from windlass.scheduling.types import Aside, NodeKey

MOST_NODES = 5  # that are told of one by one
MOST_RUNS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What a decision does not look at, and people want to know."""

    names: Mapping[str, str] = field(default_factory=dict)  # of runs, by id
    aside: Mapping[NodeKey, Aside] = field(default_factory=dict)
    away: Mapping[str, str] = field(default_factory=dict)  # engine -> why it cannot be asked

    def label(self, run_id: str) -> str:
        name = self.names.get(run_id, run_id)
        return run_id if name == run_id else f"{name} ({run_id})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    summary: str
    details: tuple[str, ...]
    position: int


def explain_waiting(outlook: Outlook, run_id: str, beside: Beside) -> Explanation | None:
    """None if the run is not among those waiting."""
    run = outlook.waiting.get(run_id)
    if run is None:
        return None
    found = _Account(outlook, run, beside)
    return Explanation(summary=found.summary(), details=tuple(found.details()), position=outlook.position[run_id])


def reason_in_short(found: Hindrance, beside: Beside) -> str:
    """For a line of a table."""
    if found.obstacle is Obstacle.NONE:
        return "starts now"
    if found.obstacle is Obstacle.NO_NODES:
        return "no nodes are known"
    if found.obstacle is Obstacle.ABSENT:
        return "no such nodes are there now"
    if found.obstacle is Obstacle.LIMIT:
        return f"project {found.holder}: limit of {describe_amount(found.resource, found.most)}"
    if found.obstacle is Obstacle.USER_LIMIT:
        return f"{found.holder or 'user'}: limit of {describe_amount(found.resource, found.most)}"
    if found.obstacle is Obstacle.SOON:
        return "its room is about to be free"
    if found.reservation is not None:
        return f"next in line for {describe_want(found.want)}"
    if found.obstacle is Obstacle.ROOM:
        return f"{describe_want(found.want)} not free"
    if found.obstacle is Obstacle.KEPT:
        return f"room is kept for {beside.names.get(found.kept_for[0], found.kept_for[0])}"
    return "waits its turn"


class _Account:
    """Of one run."""

    def __init__(self, outlook: Outlook, run: Waiting, beside: Beside) -> None:
        self._outlook = outlook
        self._run = run
        self._beside = beside
        self._now = outlook.now
        self._found = outlook.hindrance(run)
        self._want = self._found.want
        self._ahead = outlook.order[: outlook.position[run.run_id] - 1]
        # With one project and nothing promised to it there is nothing to say about projects.
        self._is_shared = len(outlook.projects) > 1 or bool(outlook.account(run.project).quota)
        self._short = outlook.short_nodes(run)

    def summary(self) -> str:
        found = self._found
        if found.obstacle is Obstacle.NO_NODES:
            return "waits for an engine: no nodes are known yet"
        if found.obstacle is Obstacle.NONE or (found.obstacle is Obstacle.TURN and not self._ahead):
            return "is about to start"
        if found.obstacle in (Obstacle.LIMIT, Obstacle.USER_LIMIT):
            return f"waits: {self._limit()}"
        if found.obstacle is Obstacle.SOON:
            return self._soon()
        if found.obstacle is Obstacle.TURN:
            ahead = f"{count_runs(len(self._ahead))} ahead"
            return f"waits its turn: {ahead}, first {self._beside.label(self._ahead[0])}"
        if found.obstacle is Obstacle.KEPT:
            kept = listing([self._beside.label(run_id) for run_id in found.kept_for], 1)
            return f"would have room, but that is kept for {kept}{self._starting(found.kept_for[0])}"
        why = "no such nodes are there now" if found.obstacle is Obstacle.ABSENT else self._because()
        behind = f"; {count_runs(len(self._ahead))} ahead of it" if self._ahead else ""
        return f"waits for {self._missing()}: {why}{behind}"

    def details(self) -> list[str]:
        obstacle = self._found.obstacle
        details = [*self._wishes(), *self._kept()]
        if obstacle in (Obstacle.ROOM, Obstacle.ABSENT):
            details += [*self._in_the_way(), *self._entitled(), *self._lacking(), *self._avoided(), *self._holders()]
        if obstacle in (Obstacle.LIMIT, Obstacle.USER_LIMIT):
            details += self._limited()
        if obstacle is not Obstacle.NONE and self._is_shared:
            details += self._shares()
        if self._ahead and obstacle not in (Obstacle.NONE, Obstacle.TURN):
            details.append(f"ahead of it: {listing([self._beside.label(each) for each in self._ahead], MOST_RUNS)}")
        engines = self._want.engines
        details += [
            f"engine {name} cannot be reached: {why}"
            for name, why in sorted(self._beside.away.items())
            if engines is None or name in engines
        ]
        return details

    # ---- what it waits for -------------------------------------------------------------------------------------

    def _missing(self) -> str:
        want = self._want
        if self._found.obstacle is Obstacle.ABSENT:
            return describe_want(want)
        lack = self._outlook.lack(self._run)
        if want.nodes > 1:
            more = want.nodes - lack.nodes_with_room
            if not lack.nodes_with_room or more <= 0:
                return f"{want.nodes} nodes of {describe_each(want)}"
            return f"{more} more {'node' if more == 1 else 'nodes'} of {describe_each(want)}"
        return _missing_on_one(want, lack)

    def _because(self) -> str:
        blockers = self._outlook.blockers(self._run)
        if not blockers or (not self._is_shared and len(self._short) == 1):
            return "not free now"
        last = blockers[-1].run
        label, fate = self._beside.label(last.run_id), self._fate(last)
        if not self._is_shared:
            which = f"{len(blockers)} runs have to end, the last, {label}," if len(blockers) > 1 else label
            return f"{which} {fate}"
        holding = self._holding(last.project)
        theirs = sum(blocker.run.project == last.project for blocker in blockers)
        which = f"its run {label}" if theirs == 1 else f"{theirs} of its runs have to end, the last, {label},"
        return f"{holding}, {which} {fate}"

    def _fate(self, run: Running) -> str:
        """`checkpointed 3 min ago and ends in about 40 min`."""
        if run.stopping:
            return "is stopping"
        said = []
        if run.saved_at is not None and run.saved_at >= run.started_at:
            said.append(f"checkpointed {format_roughly(self._now - run.saved_at)} ago")
        end = self._outlook.likely_end(run)
        if end is not None:
            said.append(f"ends in about {format_roughly(max(0.0, end - self._now))}")
        return " and ".join(said) or f"has run for {format_roughly(self._now - run.started_at)}"

    def _holding(self, project: str) -> str:
        resource = self._resource()
        borrowed = self._outlook.borrowed(project, resource) if self._outlook.has_quotas else 0.0
        whose = f"project {project}" if project != self._run.project else f"its own project, {project},"
        if borrowed and project != self._run.project:
            return f"{whose} borrows {borrowed:g}"
        held = self._outlook.account(project).holds(resource)
        return f"{whose} holds {describe_amount(resource, held)}"

    def _resource(self) -> str:
        """What it is about, as quotas name it: where one names its type of GPU, that."""
        if not self._want.gpus:
            return "cpu"
        wanted = self._want.gpu_type
        named = {resource for project in self._outlook.snapshot.projects for resource in project.quota}
        if wanted and resource_of(wanted) in named:
            return resource_of(wanted)
        return "tpu" if is_tpu(wanted) else "gpu"

    def _limit(self) -> str:
        found = self._found
        most = describe_amount(found.resource, found.most)
        if found.obstacle is Obstacle.USER_LIMIT:
            limit = f"the limit of {most} for each user"
            who = found.holder or "nobody in particular"
        else:
            limit, who = f"its limit of {most}", f"project {found.holder}"
        if found.held >= found.most:
            return f"{who} is at {limit}"
        return f"with {describe_want(self._want)} more {who} would pass {limit}"

    def _soon(self) -> str:
        stopping = [self._beside.label(run_id) for run_id in self._outlook.stops_for.get(self._run.run_id, ())]
        stopping = stopping or [
            self._beside.label(blocker.run.run_id)
            for blocker in self._outlook.blockers(self._run)
            if blocker.run.stopping
        ]
        if not stopping:
            return "starts soon: what it needs is about to be free"
        return f"starts soon: {listing(stopping, 2)} {'makes' if len(stopping) == 1 else 'make'} room for it"

    def _starting(self, run_id: str) -> str:
        kept = self._outlook.reservations.get(run_id)
        return f", which starts in about {format_roughly(max(0.0, kept.at - self._now))}" if kept is not None else ""

    # ---- what there is to know besides -------------------------------------------------------------------------

    def _wishes(self) -> list[str]:
        run, want = self._run, self._want
        said = []
        if want.most > want.nodes:
            said.append(f"it begins with {want.nodes} of them or more, and takes up to {want.most}")
        others = [describe_want(each) for each in run.wants if each != want]
        if others:
            said.append(f"it would also take {listing(list(dict.fromkeys(others)), MOST_RUNS)}")
        return said

    def _kept(self) -> list[str]:
        if self._found.obstacle is Obstacle.KEPT:
            rooms = [self._outlook.reservations[run_id] for run_id in self._found.kept_for[:MOST_RUNS]]
            return [
                f"room on {listing(list(kept.nodes), 4)} is kept for {self._beside.label(kept.run_id)}, "
                f"which starts at about {clock_time(kept.at, self._now)}"
                for kept in rooms
            ]
        kept = self._found.reservation
        if kept is None or self._found.obstacle is Obstacle.SOON or len(self._outlook.snapshot.nodes) == 1:
            return []
        nodes = "1 node is" if len(kept.nodes) == 1 else f"{len(kept.nodes)} nodes are"
        return [f"{nodes} kept for it from about {clock_time(kept.at, self._now)}: {listing(list(kept.nodes), 4)}"]

    def _in_the_way(self) -> list[str]:
        blockers = self._outlook.blockers(self._run)
        if len(blockers) < 2:
            return []  # the sentence names it
        said = [
            f"{self._beside.label(blocker.run.run_id)}, which {self._fate(blocker.run)}" for blocker in blockers[::-1]
        ]
        return [f"have to end first: {listing(said, 3, '; ')}"]

    def _entitled(self) -> list[str]:
        """Whom it could displace by its priority, were they not left alone for a while after their start."""
        policy = self._outlook.policy
        if not policy.preempts or self._outlook.has_quotas:
            return []
        lower = [
            (protected_until(run, policy), run.run_id)
            for run in self._outlook.running.values()
            if run.preemptible and run.priority < self._run.priority and not run.stopping
        ]
        if not lower or min(lower)[0] <= self._now:
            return []
        until, run_id = min(lower)
        which = f"{self._beside.label(run_id)}, which has just started"
        return [f"it has precedence over {which}: that is left alone until {clock_time(until, self._now)}"]

    def _lacking(self) -> list[str]:
        if len(self._short) <= MOST_NODES:
            return [f"node {short.node.name} lacks {', '.join(_shortage(short, self._want))}" for short in self._short]
        lack = self._outlook.lack(self._run)
        most = max(self._short, key=lambda short: (short.gpus, short.cpus))
        free = f"{most.gpus} GPU" if self._want.gpus else f"{most.cpus:g} CPU"
        return [
            f"of {lack.suited:,} nodes that suit it {lack.nodes_with_room:,} have room; "
            f"of the others {most.node.name} has the most free: {free}"
        ]

    def _avoided(self) -> list[str]:
        """Nodes that would suit it, were they not set aside."""
        suited = self._outlook.suited_nodes(self._run)
        said = [
            f"node {node.name} {describe_aside(aside)}"
            for node in sorted(self._outlook.snapshot.nodes, key=lambda node: (node.engine, node.name))
            if (aside := self._beside.aside.get((node.engine, node.name))) is not None
            and (node.engine, node.name) not in suited
            and any(_would_suit(want, node) for want in self._run.wants)
        ]
        more = len(said) - MOST_NODES
        return [*said[:MOST_NODES], *([f"{more} more nodes are set aside"] if more > 0 else [])]

    def _holders(self) -> list[str]:
        suited, unit = self._outlook.suited_nodes(self._run), self._unit()
        held: dict[str, list[tuple[float, str]]] = {}
        for run in self._outlook.running.values():
            shares = [share for engine, share in holdings(run) if (engine, share.node) in suited]
            amount = sum(len(share.gpu_indices) * share.gpu_part for share in shares)
            if unit == "CPU":
                amount = sum(share.cpus for share in shares)
            if amount:
                held.setdefault(run.project, []).append((amount, run.run_id))
        if not self._is_shared:
            runs = [f"{self._beside.label(run_id)} holds {amount:g} {unit}" for amount, run_id in _most(held)]
            rest = len(runs) - MOST_NODES
            return [*runs[:MOST_NODES], *([f"{rest} more runs hold {unit}"] if rest > 0 else [])]
        said = []
        for project, runs_of in sorted(held.items(), key=lambda item: -sum(amount for amount, _ in item[1])):
            whole = sum(amount for amount, _ in runs_of)
            beyond = self._outlook.borrowed(project, self._resource()) if self._outlook.has_quotas else 0.0
            mark = f", {min(beyond, whole):g} of them borrowed" if beyond else ""
            which = [f"{self._beside.label(run_id)} {amount:g}" for amount, run_id in _most({project: runs_of})]
            said.append(f"project {project} holds {whole:g} {unit}{mark}: {listing(which, MOST_RUNS)}")
        return said

    def _unit(self) -> str:
        """What is counted of those that hold it."""
        lack = self._outlook.lack(self._run)
        if not self._want.gpus or (lack.cpus and not lack.gpus):
            return "CPU"
        types = {want.gpu_type for want in self._run.wants}
        return title_of(types.pop() if len(types) == 1 else ANY_TPU if is_tpu(self._want.gpu_type) else None)

    def _limited(self) -> list[str]:
        found = self._found
        is_user = found.obstacle is Obstacle.USER_LIMIT
        runs = []
        for run in self._outlook.running.values():
            above = {each.name for each in self._outlook.account(run.project).path}
            if run.user == found.holder if is_user else found.holder in above:
                runs.append((needs(run.want, found.resource, len(run.placement.shares)), run.run_id))
        which = [self._beside.label(run_id) for held, run_id in _most({"": runs}) if held or found.resource == "runs"]
        who = found.holder if is_user else f"project {found.holder}"
        held_now = describe_amount(found.resource, found.held)
        return [f"{who} holds {held_now}: {listing(which, MOST_RUNS)}"] if which else []

    def _shares(self) -> list[str]:
        account = self._outlook.account(self._run.project)
        said = []
        for resource, quota in sorted(account.quota.items()):
            held = account.holds(resource)
            if held >= quota:
                said.append(
                    f"its project's quota of {describe_amount(resource, quota)} is in use: "
                    "what is beyond is borrowed, and comes after what quotas cover"
                )
        share, lately = self._outlook.share_held(account), account.used
        said.append(f"project {account.name} has {share:.0%} of the cluster now and had {lately:.0%} lately")
        return said


def _missing_on_one(want: Want, lack: Lack) -> str:
    kind = title_of(want.gpu_type)
    if lack.gpus and lack.gpus < want.gpus:
        return f"{lack.gpus} more {kind}" + (" on one node" if lack.suited > 1 else "")
    if lack.gpus or not want.gpus or not (lack.cpus or lack.memory_bytes):
        return describe_want(want)
    beside = f" beside {want.gpus:g} {kind}"
    return (f"{want.cpus:g} CPU" if lack.cpus else f"{format_size(want.memory_bytes)} memory") + beside


def _shortage(short: Short, want: Want) -> list[str]:
    """`4 CPU (2 of 8 free)`."""
    node, found = short.node, []
    if short.cpus < want.cpus:
        found.append(f"{want.cpus:g} CPU ({short.cpus:.3g} of {node.cpus:.4g} free)")
    if short.memory_bytes < want.memory_bytes:
        free = f"{format_size(short.memory_bytes)} of {format_size(node.memory_bytes)} free"
        found.append(f"{format_size(want.memory_bytes)} memory ({free})")
    if short.gpus < want.gpus:
        found.append(f"{want.gpus:g} {title_of(node.gpu_type)} ({short.gpus} of {node.gpus} free)")
    return found


def _would_suit(want: Want, node: NodeState) -> bool:
    return (
        want.gpus <= node.gpus
        and want.cpus <= node.cpus
        and want.memory_bytes <= node.memory_bytes
        and (not want.gpus or serves(node.gpu_type, want.gpu_type))
        and (want.engines is None or node.engine in want.engines)
        and want.labels <= node.labels
        and (want.spot_ok or not node.spot)
    )


def _most(held: Mapping[str, list[tuple[float, str]]]) -> list[tuple[float, str]]:
    """Who holds the most first."""
    return sorted((each for runs in held.values() for each in runs), key=lambda each: (-each[0], each[1]))


def describe_aside(aside: Aside) -> str:
    """`is set aside until 2026-11-15 14:05 UTC: uncorrectable ECC error`."""
    until = "until somebody gives it back"
    if aside.until is not None:
        until = f"until {datetime.fromtimestamp(aside.until, UTC):%Y-%m-%d %H:%M} UTC"
    return f"is set aside {until}: {aside.reason}"
