"""Python source read without running it. The only place that uses `ast.parse`: until 3.12, CPython counts the depth of
what it builds in one number for all threads, and two of them at once end in a SystemError.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ast

_one_at_a_time = threading.Lock()


def parse_source(source: bytes) -> ast.Module | None:
    """None for what is no Python, or too deep for this interpreter."""
    import ast  # long to load, and every submission would wait for it

    try:
        with _one_at_a_time:
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
