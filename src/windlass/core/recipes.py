"""The recipes that come with Windlass, known without importing them: they load torch, and this is for everybody."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from windlass.core.errors import InvalidInput
from windlass.core.names import unknown
from windlass.core.syntax import parse_source

PACKAGE = "windlass.job.recipes"
FOLDER = Path(__file__).parent.parent / "job" / "recipes"


def module_of(name: str) -> str:
    """What `python -m` is told to run."""
    return f"{PACKAGE}.{name}"


def check_recipe(name: str) -> str:
    if name not in (known := recipe_names()):
        raise InvalidInput(unknown("recipe", name, known))
    return name


@cache
def recipe_names(folder: Path = FOLDER) -> tuple[str, ...]:
    """Every module of the folder is one. Told from the names of files alone: every spec that is read asks for them."""
    return tuple(sorted(path.stem for path in folder.glob("[a-z]*.py")))


@cache
def load_recipes(folder: Path = FOLDER) -> dict[str, str]:
    """The first line of each recipe's docstring, by name."""
    return {name: _docstring(folder / f"{name}.py").partition("\n")[0] for name in recipe_names(folder)}


def _docstring(path: Path) -> str:
    import ast

    tree = parse_source(path.read_bytes())
    return (ast.get_docstring(tree) or "") if tree is not None else ""
