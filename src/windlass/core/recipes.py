"""The recipes that come with Windlass, known without importing them: they load torch, and this is for everybody."""

from __future__ import annotations

import ast
from pathlib import Path

from windlass.core.errors import InvalidInput
from windlass.core.names import unknown

PACKAGE = "windlass.job.recipes"
_FOLDER = Path(__file__).parent.parent / "job" / "recipes"


def module_of(name: str) -> str:
    """What `python -m` is told to run."""
    return f"{PACKAGE}.{name}"


def check_recipe(name: str) -> str:
    if name not in (known := load_recipes()):
        raise InvalidInput(unknown("recipe", name, known))
    return name


def load_recipes(folder: Path = _FOLDER) -> dict[str, str]:
    """The first line of each recipe's docstring, by name. A recipe is a module of the folder that can be run."""
    found = {}
    for path in sorted(folder.glob("[a-z]*.py")):
        tree = ast.parse(path.read_bytes())
        if any(_runs(node) for node in tree.body):
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def _runs(node: ast.stmt) -> bool:
    """Whether it is `if __name__ == "__main__":`."""
    return isinstance(node, ast.If) and "__name__" in {
        name.id for name in ast.walk(node.test) if isinstance(name, ast.Name)
    }
