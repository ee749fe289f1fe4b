"""What people write on runs and projects: tags, notes, and groups, which are a tag. All of it is what MLflow's clients
see as tags, so that both sides show the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sqlalchemy import Connection, Select, func, select

from windlass.core.clock import Clock
from windlass.core.errors import Conflict, InvalidInput, NotFound
from windlass.core.storable import is_storable
from windlass.db.database import Database
from windlass.experiments.catalogue import DEFAULT_NAME, DEFAULT_PROJECT, experiment_of_project, load_named
from windlass.experiments.rules import LONGEST_EXPERIMENT_TAG, LONGEST_KEY, LONGEST_TAG
from windlass.experiments.runservice import TrackedRunService
from windlass.experiments.runstore import load_active, load_tag
from windlass.experiments.service import ExperimentService
from windlass.experiments.tables import IS_GROUP, run_tags, tracked_runs
from windlass.experiments.types import NOTE, Pair
from windlass.runs.belonging import project_of_run, same_project, with_projects
from windlass.wire.annotations import GroupView, NoteView, TagsView
from windlass.wire.spec import GROUP, check_group

_MOST_GROUPS = 1_000


class Annotations:
    """`resolve`: the id of a run by whatever names it; `projects`: those that the config names."""

    def __init__(
        self,
        *,
        db: Database,
        clock: Clock,
        resolve: Callable[[Connection, str], str],
        tracked: TrackedRunService,
        experiments: ExperimentService,
        projects: Collection[str] = (),
    ) -> None:
        self._db = db
        self._clock = clock
        self._resolve = resolve
        self._tracked = tracked
        self._experiments = experiments
        self._projects = projects

    def set_tags(
        self, ref: str, changes: Mapping[str, str | None], *, where: Mapping[str, str] | None = None
    ) -> TagsView:
        """None removes one, whether it is there or not. `where`: only if the run has these tags; raises Conflict."""
        for key, value in changes.items():
            if not 1 <= len(key) <= LONGEST_KEY or not is_storable(key):
                raise InvalidInput(f"a tag's name has 1 to {LONGEST_KEY} characters, none of them NUL: {key[:40]!r}")
            _check_text("a tag", value or "", LONGEST_TAG)
        if (group := changes.get(GROUP)) is not None:
            check_group(group)
        with self._db.read() as tx:
            run_id = self._resolve(tx, ref)
            for key, value in (where or {}).items():
                if (has := load_tag(tx, run_id, key) if is_storable(key) else None) != value:
                    found = f"its tag {key[:40]!r} is {has!r}" if has is not None else f"it has no tag {key[:40]!r}"
                    raise Conflict(f"run {run_id} is left as it is: {found}")
        self._put(run_id, changes)
        with self._db.read() as tx:
            rows = tx.execute(select(run_tags.c.key, run_tags.c.value).where(run_tags.c.run_id == run_id))
            return TagsView(run_id=run_id, tags={key: value for key, value in rows if not key.startswith("mlflow.")})

    def note(self, ref: str) -> NoteView:
        with self._db.read() as tx:
            run_id = self._resolve(tx, ref)
            return NoteView(of=run_id, text=load_tag(tx, run_id, NOTE))

    def set_note(self, ref: str, text: str) -> NoteView:
        """No text: none any more."""
        _check_text("a note", text, LONGEST_TAG)
        with self._db.read() as tx:
            run_id = self._resolve(tx, ref)
        self._put(run_id, {NOTE: text or None})
        return NoteView(of=run_id, text=text or None)

    def project_note(self, project: str) -> NoteView:
        with self._db.read() as tx:
            found = load_named(tx, _experiment_name(project))
        return NoteView(of=project, text=dict(found.tags).get(NOTE) if found else None)

    def set_project_note(self, project: str, text: str) -> NoteView:
        """Of the experiment that the project's runs are in; one that only the config names gets it now. Raises NotFound
        for a project that nobody has: an experiment stays for good."""
        _check_text("a note", text, LONGEST_EXPERIMENT_TAG)
        with self._db.write() as tx:
            if project not in self._projects and load_named(tx, _experiment_name(project)) is None:
                raise NotFound(
                    f"there is no project '{project}'", hint="it is there with its first run, or by the server's config"
                )
            number = str(experiment_of_project(tx, project, now_ms=int(self._clock.now() * 1000)))
        if text:
            self._experiments.set_tag(number, Pair(NOTE, text))
        else:
            with contextlib.suppress(NotFound):
                self._experiments.delete_tag(number, NOTE)
        return NoteView(of=project, text=text or None)

    def groups(self, *, project: str | None) -> list[GroupView]:
        """Those with the newest runs first."""
        with self._db.read() as tx:
            rows = tx.execute(groups_query(project)).all()
        return [GroupView(name=name, runs=runs, newest_at=None if at is None else at / 1000) for name, runs, at in rows]

    def _put(self, run_id: str, changes: Mapping[str, str | None]) -> None:
        with self._db.read() as tx:
            load_active(tx, run_id)
        if given := [Pair(key, value) for key, value in changes.items() if value is not None]:
            self._tracked.log_batch(run_id, [], [], given)
        for key in [key for key, value in changes.items() if value is None]:
            with contextlib.suppress(NotFound):
                self._tracked.delete_tag(run_id, key)


def groups_query(project: str | None) -> Select[Any]:
    """(name, how many runs, the start of the newest)."""
    newest = func.max(tracked_runs.c.start_ms)
    joined = with_projects(run_tags.join(tracked_runs, tracked_runs.c.id == run_tags.c.run_id))
    query = (
        select(run_tags.c.value, func.count(), newest)
        .select_from(joined)
        .where(IS_GROUP, tracked_runs.c.stage == "active")
        .group_by(run_tags.c.value)
        .order_by(newest.desc(), run_tags.c.value)
        .limit(_MOST_GROUPS)
    )
    return query if project is None else query.where(project_of_run == same_project(project))


def _experiment_name(project: str) -> str:
    return DEFAULT_NAME if project == DEFAULT_PROJECT else project


def _check_text(what: str, text: str, longest: int) -> None:
    if len(text) > longest or not is_storable(text):
        raise InvalidInput(f"{what} is text of at most {longest:,} characters, without NUL; this one has {len(text):,}")
