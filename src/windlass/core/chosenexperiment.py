"""Which experiment of MLflow's a script chooses by `mlflow.set_experiment("name")`, told from its source. Pure.

MLflow's client goes on with the run that it is told of only where that run is in the experiment that the script has
chosen; so a run has to be there before its script begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from windlass.core.syntax import parse_source

if TYPE_CHECKING:
    import ast

# Who sets one of these in a run's environment has chosen for it what MLflow's client logs to.
CHOICES = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME")
TRACKING_URI = "MLFLOW_TRACKING_URI"

_CALL = "set_experiment"


def chosen_experiment(source: bytes) -> str | None:
    """None where nothing tells: no such call, several that differ, a name that is known only when the script runs."""
    if _CALL.encode() not in source or b"mlflow" not in source:
        return None
    if (tree := parse_source(source)) is None:
        return None
    names = set(_names(tree))
    return names.pop() if len(names) == 1 else None


def _names(tree: ast.AST) -> Iterator[str | None]:
    import ast

    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _last_word(node.func) == _CALL:
            named = [word.value for word in node.keywords if word.arg == "experiment_name"]
            given = [*node.args[:1], *named]
            value = given[0] if given else None
            yield value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def _last_word(function: ast.expr) -> str | None:
    """`set_experiment` of `mlflow.set_experiment` as of `set_experiment`."""
    found = getattr(function, "attr", None) or getattr(function, "id", None)
    return found if isinstance(found, str) else None
