"""Finding what a command names before it is started, and saying what is missing and what is near it."""

from __future__ import annotations

import os
import re
import stat
from typing import Iterable, Sequence

_PYTHON = re.compile(r"^python(\d(\.\d+)?)?$")
_MOST_NAMES = 20_000  # enough for any PATH; bounds the search for a near name


class CannotStart(Exception):
    """The command can never start here. `code` is what a shell would exit with."""

    def __init__(self, message: str, code: int = 127) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


def resolve_command(argv: Sequence[str], search_path: str, cwd: str) -> str:
    """The absolute path of the program. Raises CannotStart, naming what was looked for and the nearest thing."""
    program = _find_program(argv[0], search_path, cwd)
    _check_interpreter_line(argv[0], program)
    script = python_script(argv)
    if script is not None and not os.path.exists(os.path.join(cwd, script)):
        raise CannotStart("no file '%s' in the working folder%s" % (script, _suggest(script, _files_below(cwd))))
    return program


def is_python(program: str) -> bool:
    return bool(_PYTHON.match(os.path.basename(program)))


def python_script(argv: Sequence[str]) -> str | None:
    """The script of `python [-u] script.py ...`; None for anything else."""
    if not is_python(argv[0]):
        return None
    rest = list(argv[1:])
    while rest and rest[0] == "-u":
        rest.pop(0)
    return rest[0] if rest and not rest[0].startswith("-") else None


def _find_program(name: str, search_path: str, cwd: str) -> str:
    if "/" in name:
        return _check_program(name, os.path.join(cwd, name))
    for folder in search_path.split(os.pathsep):
        candidate = os.path.join(cwd, folder, name)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    raise CannotStart("no command '%s' on PATH%s" % (name, _suggest(name, _commands(search_path, cwd))))


def _check_program(name: str, path: str) -> str:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        folder = os.path.dirname(path)
        raise CannotStart("no file '%s'%s" % (name, _suggest(os.path.basename(name), _names_in(folder)))) from None
    if stat.S_ISDIR(mode):
        raise CannotStart("'%s' is a folder, not a program" % name, 126)
    if not os.access(path, os.X_OK):
        raise CannotStart("'%s' is not executable; chmod +x it, or name its interpreter" % name, 126)
    return path


def _check_interpreter_line(name: str, program: str) -> None:
    line = shebang(program)
    if line and not os.path.exists(line[0]):
        raise CannotStart("'%s' asks for the interpreter '%s', which does not exist" % (name, line[0]))


def shebang(program: str) -> list[str]:
    """The words of a script's `#!` line; empty for a binary, or for what cannot be read."""
    try:
        with open(program, "rb") as file:
            head = file.read(512)
    except OSError:
        return []
    if not head.startswith(b"#!"):
        return []
    return head[2:].split(b"\n", 1)[0].decode("utf-8", "surrogateescape").split(None, 1)


def _suggest(wrong: str, names: Iterable[str]) -> str:
    import difflib  # for those who have mistyped something

    near = difflib.get_close_matches(wrong, sorted(set(names))[:_MOST_NAMES], n=1, cutoff=0.6)
    return "; did you mean '%s'?" % near[0] if near else ""


def _commands(search_path: str, cwd: str) -> Iterable[str]:
    for folder in search_path.split(os.pathsep):
        yield from _names_in(os.path.join(cwd, folder))


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _files_below(cwd: str) -> Iterable[str]:
    """Files in the working folder, relative to it, down to a few levels."""
    seen = 0
    for folder, folders, files in os.walk(cwd):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if os.path.relpath(folder, cwd).count(os.sep) >= 3:
            folders[:] = []
        for name in files:
            seen += 1
            if seen > _MOST_NAMES:
                return
            yield os.path.relpath(os.path.join(folder, name), cwd)
