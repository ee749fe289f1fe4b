"""A script's settings as a dataclass, filled from the run's params."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from windlass.core.settings import fields_of, fill
from windlass.job.session import session

Settings = TypeVar("Settings")


def settings_of(kind: type[Settings], params: Mapping[str, Any] | None = None) -> Settings:
    """`kind` with the run's params (or `params`) over its defaults, and the run's seed if it has a field `seed`.

    Raises InvalidInput for a param that `kind` does not take, as `windlass.core.settings.fill` does.
    """
    if params is not None:
        return fill(kind, params)
    given = dict(session().params)
    if session().seed is not None and "seed" in fields_of(kind):
        given.setdefault("seed", session().seed)
    return fill(kind, given)
