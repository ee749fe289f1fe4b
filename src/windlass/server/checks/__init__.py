"""What a server can tell about its own surroundings: database, bucket, engines, clocks. Each check is one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from windlass.blobs.contract import Blobs
from windlass.core.clock import Clock
from windlass.core.errors import WindlassError
from windlass.db.database import Database
from windlass.runs.sealing import Seal
from windlass.server.checks import blobs as blob_checks
from windlass.server.checks import database as database_checks
from windlass.server.checks import engines as engine_checks
from windlass.server.checks import keys as key_checks
from windlass.server.settings import Settings
from windlass.wire.checks import CheckView

__all__ = ["run_checks"]


def run_checks(
    settings: Settings, db: Database, blobs: Blobs, seal: Seal, clock: Clock, environ: Mapping[str, str]
) -> list[CheckView]:
    """All of them, one after another; one that cannot be made is a line that says so. Takes seconds if parts are away:
    their time limits pass."""
    steps: list[tuple[str, Callable[[], Iterator[CheckView]]]] = [
        ("database", lambda: database_checks.check(db, clock)),
        ("blobs", lambda: blob_checks.check(settings.blobs, blobs, clock, environ)),
        ("key", lambda: key_checks.check(settings, db, seal, environ)),
        ("engines", lambda: engine_checks.check(settings, db, clock)),
    ]
    found: list[CheckView] = []
    for name, step in steps:
        try:
            found.extend(step())
        except WindlassError as error:
            found.append(
                CheckView(code=f"{name}.reach", name=name, status="fail", found=error.message, advice=error.hint or "")
            )
    return found
