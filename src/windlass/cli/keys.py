"""Options of the command line as keys of a spec. Loads no parser: see `shortcut`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windlass.core.errors import InvalidInput


def pairs(option: str, texts: Sequence[str] | None, *, typed: bool = False) -> dict[str, Any] | None:
    """`K=V` texts as a mapping. `typed`: values are read as in a spec file, so that `lr=3e-4` is a number."""
    if not texts:
        return None
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidInput(f"{option} {text!r}: write it as NAME=VALUE")
        if typed:
            from windlass.client.specfile import parse_value

            found[name] = parse_value(value)
        else:
            found[name] = value
    return found


def tags(texts: Sequence[str] | None) -> dict[str, str] | None:
    return {name: value for name, _, value in (text.partition("=") for text in texts)} if texts else None


def secrets(texts: Sequence[str] | None) -> dict[str, str] | None:
    """Values by name: given after `=`, else from the environment, where a missing one is an error."""
    import os

    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals and name not in os.environ:
            raise InvalidInput(
                f"--secret {name}: there is no variable {name} in the environment",
                hint=f"give its value with `--secret {name}=VALUE`, or set it",
            )
        found[name] = value if equals else os.environ[name]
    return found or None


def resources(
    nodes: int | None, cpus: float | None, gpus: int | str | None, memory: str | None
) -> dict[str, int | float | str] | None:
    given = {"nodes": nodes, "cpus": cpus, "gpus": gpus, "memory": memory}
    return {name: value for name, value in given.items() if value is not None} or None
