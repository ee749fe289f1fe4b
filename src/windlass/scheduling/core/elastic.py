"""Elastic runs take what nobody who waits could use: those that start now at once, those that run after a while, since
they have to come back for it.
"""

from __future__ import annotations

from dataclasses import replace

from windlass.core.accelerators import resource_of
from windlass.core.resources import NodeShare, Placement
from windlass.scheduling.core.shapes import Form, Shape
from windlass.scheduling.core.table import Table
from windlass.scheduling.core.types import Resize, Run, Running, Want


class _Growing:
    """A run that may have more nodes."""

    __slots__ = ("form", "kinds", "more", "places", "project", "run_id", "user")

    def __init__(self, run: Run, form: Form, placement: Placement, table: Table) -> None:
        self.run_id = run.run_id
        self.project = run.project
        self.user = run.user
        self.form = form
        found = (table.pool.at.get((placement.engine, share.node)) for share in placement.shares)
        self.places = [place for place in found if place is not None]
        types = {table.pool.kinds[table.pool.kind_at[place]].gpu_type for place in self.places}
        self.kinds = [
            kind
            for group in form.groups
            for kind in group
            if table.pool.kinds[kind].engine == placement.engine and table.pool.kinds[kind].gpu_type in types
        ]
        self.kinds = sorted(set(self.kinds))
        self.more: list[NodeShare] = []

    def take_one(self, table: Table) -> bool:
        if len(self.places) >= self.form.most or self.form.part:
            return False
        account = table.accounts.of(self.project)
        types = [resource_of(table.pool.kinds[kind].gpu_type) for kind in self.kinds]
        if table.exceeds(account, self.user, self.form.want, 1, runs=0, types=types):
            return False
        fitting = [place for place in table.pool.fitting(self.form, self.kinds) if place not in self.places]
        if not fitting:
            return False
        place = min(fitting, key=table.pool.room)
        self.more.append(table.pool.take(place, self.form))
        self.places.append(place)
        table.charge(account, self.user, self.form.want, 1, runs=0, types=table.types_at([place], self.form.want))
        return True


def grow(table: Table) -> list[Resize]:
    """One node at a time to each in turn, those that start now first."""
    starting = _starting(table)
    _share_out(starting, table)
    for run in starting:
        if run.more:
            start = table.starts[run.run_id]
            table.starts[run.run_id] = replace(start, placement=_with(start.placement, run.more))
    running, placements = _running(table)
    _share_out(running, table)
    return [Resize(run_id=run.run_id, placement=_with(placements[run.run_id], run.more)) for run in running if run.more]


def _starting(table: Table) -> list[_Growing]:
    if not table.form_of:
        return []
    runs = {run.run_id: run for run in table.snapshot.waiting if run.run_id in table.form_of}
    return [
        _Growing(runs[run_id], form, table.starts[run_id].placement, table) for run_id, form in table.form_of.items()
    ]


def _running(table: Table) -> tuple[list[_Growing], dict[str, Placement]]:
    found = []
    forms: dict[Want, Form | None] = {}
    changed = {stop.run_id for stop in table.stops} | {resize.run_id for resize in table.resizes}
    placements: dict[str, Placement] = {}
    for run in sorted(table.snapshot.running, key=lambda run: (run.started_at, run.run_id)):
        if run.want.most <= len(run.placement.shares) or run.run_id in changed or not _may_grow(run, table):
            continue
        if run.want not in forms:
            shape = Shape((run.want,), table.pool)
            forms[run.want] = shape.forms[0] if shape.forms else None
        form = forms[run.want]
        if form is not None:
            found.append(_Growing(run, form, run.placement, table))
            placements[run.run_id] = run.placement
    return found, placements


def _may_grow(run: Running, table: Table) -> bool:
    """Not where a node of it is closed or gone: it is not to go on there."""
    left_alone_s = table.policy.grow_after_s if run.grow_every_s is None else run.grow_every_s
    if run.stopping or run.started_at + left_alone_s > table.now:
        return False
    return all((run.placement.engine, share.node) in table.pool.at for share in run.placement.shares)


def _share_out(runs: list[_Growing], table: Table) -> None:
    growing = runs
    while growing:
        growing = [run for run in growing if run.take_one(table)]


def _with(placement: Placement, more: list[NodeShare]) -> Placement:
    return Placement(engine=placement.engine, shares=(*placement.shares, *more))
