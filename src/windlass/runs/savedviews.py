"""Searches that have a name, for everybody who uses the server: of one project's runs, or of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Column, Connection, String, Table, Text, delete, select

from windlass.core.clock import Clock
from windlass.core.errors import Ambiguous, Conflict, InvalidInput, NotFound
from windlass.core.names import nearest
from windlass.db.database import Database
from windlass.db.insertion import insert_or_replace
from windlass.db.metadata import Json, Seconds, metadata
from windlass.runs.search import check_search, read_filter
from windlass.wire.savedviews import SavedView, ViewRequest
from windlass.wire.search import column_of

_ALL = ""  # in place of a project: NULL cannot be part of a key
_MOST = 1_000

saved_views = Table(
    "saved_views",
    metadata,
    Column("project", String(64), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("where", Text),
    Column("order", Json, nullable=False),
    Column("columns", Json, nullable=False),
    Column("description", Text),
    Column("updated_at", Seconds, nullable=False),
)


class Wanted(NamedTuple):
    where: str | None
    order: Sequence[str]


class SavedViews:
    def __init__(self, *, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def save(self, name: str, project: str | None, request: ViewRequest) -> SavedView:
        """Replaces one of that name. Raises InvalidInput for what cannot be searched."""
        view = SavedView(name=name, project=project, **request.model_dump(), updated_at=self._clock.now())
        wanted = apply_view(view, None, ())
        for column in view.columns:
            column_of(column)
        with self._db.write() as tx:
            check_search(tx, wanted.where, wanted.order, now=view.updated_at)
            if len(load_views(tx)) >= _MOST and not load_views(tx, name=name, project=project):
                raise Conflict(f"there are {_MOST:,} views already", hint="`windlass views rm` removes one")
            row = view.model_dump() | {"project": project or _ALL}
            insert_or_replace(tx, saved_views, row)
        return view

    def remove(self, name: str, project: str | None) -> None:
        with self._db.write() as tx:
            found = find_view(tx, name, project, exactly=True)
            c = saved_views.c
            tx.execute(delete(saved_views).where(c.name == name, c.project == (found.project or _ALL)))

    def list(self, *, project: str | None = None) -> list[SavedView]:
        """With `project` those of it, and those of all."""
        with self._db.read() as tx:
            return [view for view in load_views(tx) if project is None or view.project in (None, project)]

    def get(self, name: str, project: str | None) -> SavedView:
        with self._db.read() as tx:
            return find_view(tx, name, project)


def apply_view(view: SavedView, where: str | None, order: Sequence[str]) -> Wanted:
    """A search by a view, and by more than that."""
    parts = [f"project = '{view.project}'" if view.project else None, view.where, where]
    for part in parts:
        read_filter(part)  # each by itself: two halves make no whole
    said = [part.strip().rstrip(";") for part in parts if part and part.strip()]
    return Wanted(" and ".join(said) or None, order or view.order)


def find_view(tx: Connection, name: str, project: str | None, *, exactly: bool = False) -> SavedView:
    """That of `project`, or of all runs; without `project` that of all runs, or the only one of that name. `exactly`:
    with `project` only one of its own."""
    found = load_views(tx, name=name)
    others = found if project is None else [] if exactly else [view for view in found if view.project is None]
    mine = [view for view in found if view.project == project] or others
    if len(mine) > 1:
        places = ", ".join(sorted(view.project or "" for view in mine))
        raise Ambiguous(f"several projects have a view '{name}': {places}", hint="say which: --project NAME")
    if not mine:
        guess = nearest(name, [view.name for view in load_views(tx)])
        hint = f"did you mean '{guess}'?" if guess else "`windlass views ls` lists all"
        raise NotFound(f"there is no view '{name}'" + (f" of project {project}" if project else ""), hint=hint)
    return mine[0]


def load_views(tx: Connection, *, name: str | None = None, project: str | None = None) -> list[SavedView]:
    c = saved_views.c
    query = select(saved_views).order_by(c.project, c.name)
    if name is not None:
        query = query.where(c.name == name)
    if project is not None:
        query = query.where(c.project == project)
    return [_view(dict(row)) for row in tx.execute(query).mappings()]


def check_name(name: str) -> str:
    """Raises InvalidInput."""
    if not 1 <= len(name) <= 64 or any(not letter.isprintable() for letter in name):
        raise InvalidInput(f"a view's name has 1 to 64 characters that can be printed: {name[:80]!r}")
    return name


def _view(row: dict[str, Any]) -> SavedView:
    return SavedView(**{**row, "project": row["project"] or None})
