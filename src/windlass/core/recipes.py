"""The recipes that come with Windlass, known without importing them: they load torch, and this is for everybody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.core.errors import InvalidInput
from windlass.core.names import unknown
from windlass.core.settings import Field, fields_of, fill
from windlass.core.syntax import parse_source

if TYPE_CHECKING:
    import ast

PACKAGE = "windlass.job.recipes"
FOLDER = Path(__file__).parent.parent / "job" / "recipes"


def module_of(name: str) -> str:
    """What `python -m` is told to run."""
    return f"{PACKAGE}.{name}"


def check_recipe(name: str) -> str:
    if name not in (known := recipe_names()):
        raise InvalidInput(unknown("recipe", name, known))
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    name: str
    summary: str  # the first line of what it says of itself
    about: str
    path: Path
    settings: type[Any]  # a dataclass
    params: Mapping[str, tuple[Field, str]]  # each with what it is for

    @property
    def examples(self) -> list[str]:
        """The commands in what it says of itself."""
        lines = (line.partition("  #")[0].strip() for line in self.about.splitlines())
        return [line for line in lines if line.startswith("windlass run ")]


@cache
def recipe_names(folder: Path = FOLDER) -> tuple[str, ...]:
    """Every module of the folder is one. Told from the names of files alone: every spec that is read asks for them."""
    return tuple(sorted(path.stem for path in folder.glob("[a-z]*.py")))


@cache
def load_recipes(folder: Path = FOLDER) -> dict[str, Recipe]:
    return {name: load_recipe(name, folder) for name in recipe_names(folder)}


@cache
def load_recipe(name: str, folder: Path = FOLDER) -> Recipe:
    path = folder / f"{name}.py"
    source = path.read_bytes()
    if (tree := parse_source(source)) is None:
        raise ValueError(f"{path} is no Python")
    lines = source.decode().splitlines()
    about = _docstring(tree)
    settings, explained = _settings(tree, lines, path)
    return Recipe(
        name=name,
        summary=about.partition("\n")[0],
        about=about,
        path=path,
        settings=settings,
        params={field: (declared, explained.get(field, "")) for field, declared in fields_of(settings).items()},
    )


def check_params(name: str, params: Mapping[str, Any]) -> None:
    """Raises InvalidInput for params that the recipe would refuse: for their names, types and bounds."""
    try:
        fill(load_recipe(check_recipe(name)).settings, params)
    except InvalidInput as error:
        raise InvalidInput(error.message, hint=f"`windlass recipes {name}` lists its params") from None


def _docstring(tree: ast.Module) -> str:
    import ast

    return ast.get_docstring(tree) or ""


def _settings(tree: ast.Module, lines: list[str], path: Path) -> tuple[type[Any], dict[str, str]]:
    """The recipe's dataclass `Settings`, made of its own lines and of what it imports for them, which is no torch; and
    what its comments say of each field."""
    import ast

    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Settings"]
    if not found:
        return _NoSettings, {}
    (node,) = found
    imports = [one for one in tree.body if isinstance(one, ast.ImportFrom) and one.module in _LIGHT]
    parts = [(one.lineno, one.end_lineno) for one in imports]
    parts.append((node.decorator_list[0].lineno if node.decorator_list else node.lineno, node.end_lineno))
    text = "\n".join(line for first, last in parts for line in lines[first - 1 : last])
    namespace: dict[str, Any] = {"__name__": module_of(path.stem)}
    exec(compile(text, str(path), "exec", dont_inherit=True), namespace)
    declared = [one for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
    explained = {one.target.id: lines[one.end_lineno - 1].partition("  # ")[2] for one in declared}  # type: ignore[union-attr,operator]
    return namespace["Settings"], explained


# What declarations of settings are made of.
_LIGHT = ("dataclasses", "typing", "windlass.core.settings")


@dataclass(frozen=True)
class _NoSettings:
    """Of a recipe that takes no params."""
