"""`run` and `submit` read without the parser, which takes longer to load than a run takes to submit. Understands plain
lines only: whatever is unknown, missing or of a wrong type is left to the parser, which says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_COMMON = {
    "--name": "name", "-n": "name", "--project": "project", "--param": "param", "-p": "param", "--env": "env",
    "-e": "env", "--secret": "secret", "--priority": "priority", "--tag": "tag", "--group": "group",
    "--plan": "plan", "--experiment": "experiment",
}  # fmt: skip
VALUES: Mapping[str, Mapping[str, str]] = {  # options with a value, and the parameter each is for
    "submit": _COMMON,
    "run": {
        **_COMMON,
        **{f"--{name}": name for name in ("file", "nproc", "nodes", "cpus", "gpus", "memory", "timeout", "retries")},
        "-f": "file",
        "--seed": "seed",
        "--recipe": "recipe",
    },
}
FLAGS: Mapping[str, Mapping[str, str]] = {
    "submit": {"--follow": "follow", "-f": "follow", "--json": "json"},
    "run": {"--detach": "detach", "-d": "detach", "--no-snapshot": "no_snapshot", "--no-warm": "no_warm"},
}
REPEATED = frozenset(("param", "env", "secret", "tag"))
_NUMBERS: Mapping[str, tuple[Callable[[str], float], int]] = {  # how it is read, and the least it may be
    "nproc": (int, 1), "nodes": (int, 1), "cpus": (float, 0), "retries": (int, 0), "seed": (int, 0),
}  # fmt: skip
# Of `run`; scripts often have these too, and then mean themselves.
_OF_SCRIPTS = frozenset(("env", "file", "group", "name", "priority", "project", "seed", "tag", "timeout"))


def parse_line(words: Sequence[str]) -> dict[str, Any] | None:
    """What the options and arguments after `windlass` say, by parameter; None if the parser is to read them."""
    command, left = words[0], list(words[1:])
    given: dict[str, Any] = {}
    while left and left[0].startswith("-") and left[0] != "-":
        word = left.pop(0)
        if word == "--":
            break
        option, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if option in FLAGS[command] and not equals:
            given[FLAGS[command][option]] = True
            continue
        if option not in VALUES[command] or not (equals or left):
            return None
        if not _take(given, VALUES[command][option], value if equals else left.pop(0)):
            return None
    if command == "run":
        return {**given, "command": left} if left or given.keys() & {"file", "recipe"} else None
    # Options may come after the file, too; that is rare enough.
    return {**given, "file": Path(left[0])} if len(left) == 1 and not left[0].startswith("-") else None


def misplaced(command: Sequence[str]) -> list[str]:
    """Options of `run` that stand after the script of `command`, and so go to the script."""
    script = next((at for at, word in enumerate(command) if word.endswith(".py")), len(command))
    ours = {**VALUES["run"], **FLAGS["run"]}
    after = [word.partition("=")[0] for word in command[script + 1 :]]
    return [word for word in after if word.startswith("--") and ours.get(word, "name") not in _OF_SCRIPTS]


def _take(given: dict[str, Any], name: str, text: str) -> bool:
    if text.startswith("-"):
        return False  # rather an option whose neighbour has lost its value
    if name in REPEATED:
        given.setdefault(name, []).append(text)
    elif name in _NUMBERS:
        read, least = _NUMBERS[name]
        try:
            given[name] = read(text)
        except ValueError:
            return False
        return bool(given[name] >= least)
    else:
        given[name] = Path(text) if name == "file" else text
    return True
