"""What a recipe refuses, told without a traceback: it would show our own files, and the message says it all."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType

from windlass.core.errors import InvalidInput


def run_recipe(main: Callable[[], object]) -> None:
    """Call `main`. If what it was given breaks a rule, one line of the error output says so, the last one; every other
    error has its traceback. Exit codes are as always."""
    previous = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        if isinstance(error, InvalidInput):
            print(refusal(error), file=sys.stderr, flush=True)
        else:
            previous(kind, error, where)

    sys.excepthook = show
    main()


def refusal(error: InvalidInput) -> str:
    return " ".join(f"error: {error.message}{f'; {error.hint}' if error.hint else ''}".split())
