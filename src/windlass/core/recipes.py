"""The recipes that come with Windlass, known without importing them: they load torch, and this is for everybody."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.core.errors import InvalidInput
from windlass.core.names import unknown
from windlass.core.plan import ModelShape, Plan, plan_of
from windlass.core.settings import Field, fields_of, fill
from windlass.core.syntax import parse_source
from windlass.core.wanted import AUTO, Wanted

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
    # How its model can be cut, by settings and plan (or `auto`); None if they alone do not tell.
    shape_of: Callable[[Any, Plan | str], ModelShape] | None
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
    found = _definitions(tree, lines, path)
    settings = found.get("Settings", _NoSettings)
    explained = _explained(tree, lines)
    return Recipe(
        name=name,
        summary=about.partition("\n")[0],
        about=about,
        path=path,
        settings=settings,
        shape_of=found.get("shape_of"),
        params={field: (declared, explained.get(field, "")) for field, declared in fields_of(settings).items()},
    )


def check_params(name: str, params: Mapping[str, Any]) -> None:
    """Raises InvalidInput for params that the recipe would refuse: for their names, types and bounds, and for a model
    that they do not make."""
    recipe = load_recipe(check_recipe(name))
    try:
        settings = fill(recipe.settings, params)
        if recipe.shape_of is not None:
            recipe.shape_of(settings, AUTO)
    except InvalidInput as error:
        raise InvalidInput(error.message, hint=f"`windlass recipes {name}` lists its params") from None


def check_fit(name: str, params: Mapping[str, Any], wanted: Wanted, world_size: int) -> None:
    """InvalidPlan if the recipe's model or batch cannot be divided as is wanted, as far as params tell. Where the
    planner is to choose, only what is named is judged."""
    recipe = load_recipe(check_recipe(name))
    settings = fill(recipe.settings, params)
    plan = None if wanted.auto else plan_of(wanted.named).sized(world_size)
    if plan is not None and (batch := getattr(settings, "batch", None)) is not None:
        plan.check_batch(batch)
    if recipe.shape_of is not None:
        cut = wanted.cut if plan is None else plan
        cut.check_model(recipe.shape_of(settings, AUTO if plan is None else plan))


def _docstring(tree: ast.Module) -> str:
    import ast

    return ast.get_docstring(tree) or ""


# What a recipe says of itself to those who have no torch, and modules that this may be made of.
_TOLD = ("Settings", "shape_of")
_CORE = tuple(f"windlass.core.{name}" for name in ("errors", "names", "plan", "settings"))
_LIGHT = ("dataclasses", "pathlib", "typing", *_CORE)


def _definitions(tree: ast.Module, lines: list[str], path: Path) -> dict[str, Any]:
    """The recipe's own lines that these are made of, run without the rest of its file."""
    import ast

    parts: list[ast.stmt] = [one for one in tree.body if isinstance(one, ast.ImportFrom) and one.module in _LIGHT]
    parts += _needed(tree, _TOLD)
    text = "\n".join(line for part in parts for line in lines[_first_line(part) - 1 : part.end_lineno])
    namespace: dict[str, Any] = {"__name__": module_of(path.stem)}
    exec(compile(text, str(path), "exec", dont_inherit=True), namespace)
    return {name: namespace[name] for name in _TOLD if name in namespace}


def _needed(tree: ast.Module, names: Iterable[str]) -> list[ast.stmt]:
    """The definitions of these names in the file, and of all names that they use, in their order."""
    import ast

    defined: dict[str, ast.stmt] = {}
    for part in tree.body:
        if isinstance(part, ast.ClassDef | ast.FunctionDef):
            defined[part.name] = part
        elif isinstance(part, ast.Assign | ast.AnnAssign):
            targets = part.targets if isinstance(part, ast.Assign) else [part.target]
            defined |= {one.id: part for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    left, found = list(names), set[ast.stmt]()
    while left:
        used = defined.get(left.pop())
        if used is not None and used not in found:
            found.add(used)
            left += [one.id for one in ast.walk(used) if isinstance(one, ast.Name)]
    return sorted(found, key=lambda part: part.lineno)


def _first_line(part: ast.stmt) -> int:
    decorators = getattr(part, "decorator_list", [])
    return decorators[0].lineno if decorators else part.lineno


def _explained(tree: ast.Module, lines: list[str]) -> dict[str, str]:
    """What the comments in `Settings` say of each field."""
    import ast

    fields = [
        field for one in tree.body if isinstance(one, ast.ClassDef) and one.name == "Settings" for field in one.body
    ]
    declared = [one for one in fields if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
    return {one.target.id: lines[one.end_lineno - 1].partition("  # ")[2] for one in declared}  # type: ignore[union-attr,operator]


@dataclass(frozen=True)
class _NoSettings:
    """Of a recipe that takes no params."""
