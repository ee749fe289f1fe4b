"""Which commands a warm interpreter can run in place of a fresh one without the script noticing."""

from __future__ import annotations

import os
import re
from typing import Iterable, NamedTuple, Sequence

from .command import is_python, python_script

# Variables that interpreters and numerical libraries read when they are loaded: set by the script itself, they would
# come too late for what is loaded already.
READ_AT_IMPORT = ("PYTHON", "LD_", "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "NUMEXPR_", "TORCH", "MALLOC_")
_SETS_THEM = re.compile(rb"[\"'](" + "|".join(READ_AT_IMPORT).encode() + rb")[A-Z0-9_]*[\"']")


class Target(NamedTuple):
    kind: str  # "script" or "module"
    name: str
    args: tuple[str, ...]
    unbuffered: bool


def warm_target(argv: Sequence[str], *, program: str, interpreter: str | None) -> Target | None:
    """What of `argv` to run in the warm `interpreter`; None if it has to be executed. `program` is what argv[0] was
    found to be; both paths are compared as they are, since a virtual environment is known by its link."""
    if interpreter is None or canonical(program) != interpreter or not is_python(argv[0]):
        return None
    rest = list(argv[1:])
    unbuffered = False
    while rest and rest[0] == "-u":
        unbuffered = True
        rest.pop(0)
    script = python_script(argv)
    if script is not None:
        return Target("script", script, tuple(rest[1:]), unbuffered) if script.endswith(".py") else None
    if len(rest) >= 2 and rest[0] == "-m" and not rest[1].startswith("-"):
        return Target("module", rest[1], tuple(rest[2:]), unbuffered)
    return None


def canonical(program: str) -> str:
    """`python` and `python3` of one folder are one interpreter; a link into another folder is not followed, since
    that is what makes a virtual environment."""
    folder, name = os.path.split(os.path.abspath(program))
    for _ in range(8):
        path = os.path.join(folder, name)
        link = os.readlink(path) if os.path.islink(path) else ""
        if not link or "/" in link:
            return path
        name = link
    return os.path.join(folder, name)


def sees_the_difference(target: Target, *, cwd: str, loaded: Iterable[str]) -> bool:
    """Whether the script would behave differently with modules already loaded: it shadows one of them with a file
    of its own, or sets variables that they have read by now."""
    if target.kind == "script":
        source = os.path.realpath(os.path.join(cwd, target.name))
        folder = os.path.dirname(source)
    else:
        source = os.path.join(cwd, *target.name.split(".")) + ".py"
        folder = cwd
    if os.path.isfile(source):
        with open(source, "rb") as file:
            if _SETS_THEM.search(file.read()):
                return True
    own = __name__.partition(".")[0]  # forgotten before it runs
    loaded_names = {name.partition(".")[0] for name in loaded} - {own}
    with os.scandir(folder) as entries:
        return any(entry.name.partition(".")[0] in loaded_names and _importable(entry) for entry in entries)


def _importable(entry: os.DirEntry[str]) -> bool:
    if entry.is_dir():
        return os.path.exists(os.path.join(entry.path, "__init__.py"))
    return entry.name.endswith((".py", ".so", ".pyc"))
