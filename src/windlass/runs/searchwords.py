"""What is wrong with a search, in our own words: text that cannot be read, and names that no run has. MLflow's clients
get MLflow's words, from `experiments.language`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, select

from windlass.core.errors import InvalidInput
from windlass.core.names import missing
from windlass.experiments.catalogue import DEFAULT_PROJECT
from windlass.experiments.language import Clause, Name
from windlass.experiments.runsearch import KINDS
from windlass.experiments.tables import experiments, run_params, run_tags, tracked_runs
from windlass.runs.tables import runs
from windlass.tracking.tables import summaries
from windlass.wire.spec import GROUP

_LOOKED_AT = 500  # of the newest runs: what they have is what can be meant
_QUOTED = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`""")
_OR = re.compile(r"\bor\b|\|\|", re.IGNORECASE)
_BARE = re.compile(
    r"(?:\b(?:params?|parameters?|tags?)\.\S+|\b(?:state|project|experiment|name|id|user|group|note))"
    r"\s*(?:!=|<>|=|\b(?:i?like)\b)\s*(?P<value>[^\s'\"`(=]+)",
    re.IGNORECASE,
)
_HELD: dict[str, tuple[ColumnElement[Any], ColumnElement[Any]]] = {
    "metric": (summaries.c.run_id, summaries.c.name),
    "parameter": (run_params.c.run_id, run_params.c.key),
    "tag": (run_tags.c.run_id, run_tags.c.key),
}
_WORDS = {"metric": "metric", "parameter": "param", "tag": "tag"}


def explain_unreadable(where: str | None) -> InvalidInput | None:
    """The mistakes that are made most, of a search that was refused."""
    text = where or ""
    bare = _QUOTED.sub(_blank, text)
    if _OR.search(bare):
        return InvalidInput(
            "a search has no `or`: its comparisons are joined by `and`",
            hint="state in ('failed', 'cancelled') takes any of several; what else is wanted is another search",
        )
    if found := _BARE.search(bare):
        name, value = text[found.start() : found.start("value")].strip(), found["value"]
        return InvalidInput(f"text stands in quotes: write {name} '{value}', not {name} {value}")
    return None


def _blank(quoted: re.Match[str]) -> str:
    """As long as before, so that places stay what they were."""
    return f"'{'_' * (len(quoted[0]) - 2)}'"


def load_remarks(
    tx: Connection, clauses: Sequence[Clause], orders: Sequence[Name], *, project: str | None, is_empty: bool
) -> list[str]:
    """Names of the order that no run has; if nothing was found also those of the comparisons, and projects, experiments
    and groups that there are not."""
    names = [*orders, *((clause.name for clause in clauses if clause.op != "IS NULL") if is_empty else ())]
    told = [_of_name(tx, name) for name in dict.fromkeys(names)]
    if is_empty:
        equal = [(clause.name, clause.words("text")) for clause in clauses if _is_same_text(clause)]
        projects = [value for name, value in equal if _plain(name) == "project"]
        chosen = [value for name, value in equal if _plain(name) == "experiment"]
        groups = [value for name, value in equal if _plain(name) == GROUP]
        told += [_of_project(tx, value) for value in dict.fromkeys([*([project] if project else []), *projects])]
        told += [_of_experiment(tx, value) for value in dict.fromkeys(chosen)]
        told += [_of_group(tx, value) for value in dict.fromkeys(groups)]
    return [remark for remark in told if remark is not None]


def _is_same_text(clause: Clause) -> bool:
    return clause.op == "=" and clause.value is not None and clause.value.kind in ("text", "path")


def _plain(name: Name) -> str | None:
    kind = "attribute" if name.kind is None else KINDS.get(name.kind)
    return name.key if kind == "attribute" or (kind == "tag" and name.key == GROUP) else None


def _of_name(tx: Connection, name: Name) -> str | None:
    kind = KINDS.get(name.kind) if name.kind is not None else None
    if kind not in _HELD or (kind == "tag" and name.key == GROUP):
        return None
    run_id, key = _HELD[kind]
    if tx.execute(select(key).where(key == name.key).limit(1)).first():
        return None
    newest = select(tracked_runs.c.id).where(tracked_runs.c.stage == "active")
    newest = newest.order_by(tracked_runs.c.start_ms.desc()).limit(_LOOKED_AT)
    known = tx.execute(select(key).distinct().where(run_id.in_(newest.subquery().select()))).scalars()
    return missing(f"no run has a {_WORDS[kind]}", name.key, [one for one in known if not one.startswith("mlflow.")])


def _of_project(tx: Connection, project: str) -> str | None:
    known = {DEFAULT_PROJECT, *_experiments(tx)}
    known |= set(tx.execute(select(runs.c.project).distinct().limit(_LOOKED_AT)).scalars())
    known -= {"Default"}
    return None if project in known else missing("there is no project", project, known)


def _of_experiment(tx: Connection, experiment: str) -> str | None:
    known = _experiments(tx)
    return None if experiment in known else missing("there is no experiment", experiment, known)


def _experiments(tx: Connection) -> set[str]:
    return set(tx.execute(select(experiments.c.name).where(experiments.c.stage == "active")).scalars())


def _of_group(tx: Connection, group: str) -> str | None:
    query = select(run_tags.c.value).distinct().where(run_tags.c.key == GROUP)
    known = set(tx.execute(query.limit(_LOOKED_AT)).scalars())
    return None if group in known else missing("there is no group", group, known)
