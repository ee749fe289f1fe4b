"""The command's entry: the short way for what is in a hurry, the parser for all else, and errors in words."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

from windlass.core.errors import Ambiguous, InvalidInput, NotFound, ServerUnreachable, WindlassError

# Loading makes no garbage, and looking for it takes a twentieth of our start.
gc.set_threshold(50_000)
# httpx loads a command line of its own if it can, and that costs a tenth of our start.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]


def _act(words: list[str]) -> None:
    if words and words[0] in ("run", "submit"):
        from windlass.cli.shortcut import parse_line

        given = parse_line(words)
        if given is not None:
            _send(words[0], given)
            return
    from windlass.cli.commands import build_app

    build_app(words[0] if words else None)()


def _send(command: str, given: dict[str, Any]) -> None:
    from windlass.cli import sending
    from windlass.cli.connection import Connection
    from windlass.core.home import default_home

    where = Connection(url=os.environ.get("WINDLASS_URL") or None, home=default_home())
    act = sending.run if command == "run" else sending.submit
    act(where, given)


def exit_code_of(error: WindlassError) -> int:
    if isinstance(error, ServerUnreachable):
        return 4
    return 2 if isinstance(error, InvalidInput | NotFound | Ambiguous) else 1


def main() -> None:
    try:
        _act(sys.argv[1:])
    except WindlassError as error:
        from windlass.cli.terminal import paint_for
        from windlass.core.errors import InvalidDocument

        paint = paint_for(sys.stderr)
        problems = error.problems if isinstance(error, InvalidDocument) else (error.message,)
        for problem in problems:
            print(f"{paint('error:', 'red', 'bold')} {problem}", file=sys.stderr)
        if error.hint:
            print(f"{paint('hint:', 'cyan')} {error.hint}", file=sys.stderr)
        sys.exit(exit_code_of(error))
    except BrokenPipeError:
        # Whoever read our output has enough. Nothing is left to flush at the end, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
