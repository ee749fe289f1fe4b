"""Reading and changing many rows in a few statements: one round trip for each would take most of a pass over thousands
of runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, bindparam, update

Values = Mapping[str, Any]
_AT_ONCE = 5_000  # values in one statement; databases allow some ten thousand


def in_parts(keys: Sequence[str]) -> Iterator[list[str]]:
    """For `IN`; nothing at all for no keys."""
    for begin in range(0, len(keys), _AT_ONCE):
        yield list(keys[begin : begin + _AT_ONCE])


def update_each(tx: Connection, table: Table, changed: Iterable[tuple[Values, Values]]) -> int:
    """Set, in the row where the first columns have these values, the second ones to those. How many rows were found."""
    alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[dict[str, Any]]] = {}
    for where, values in changed:
        row = {f"old_{name}": value for name, value in where.items()}
        row |= {f"new_{name}": value for name, value in values.items()}
        alike.setdefault((tuple(where), tuple(values)), []).append(row)
    found = 0
    for (keys, names), rows in alike.items():
        change = update(table).where(*(table.c[key] == bindparam(f"old_{key}") for key in keys))
        found += tx.execute(change.values({name: bindparam(f"new_{name}") for name in names}), rows).rowcount
    return found
