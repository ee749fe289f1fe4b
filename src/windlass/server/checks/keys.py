"""Can secrets be sealed and opened here, and would another server open them too?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sqlalchemy import select

from windlass.core.errors import WindlassError
from windlass.db.database import Database
from windlass.runs.sealing import KEY_VARIABLE, Seal
from windlass.runs.tables import secrets
from windlass.server.checks.engines import NEED_URL
from windlass.server.settings import Settings
from windlass.wire.checks import CheckView, Status


def check(settings: Settings, db: Database, seal: Seal, environ: Mapping[str, str]) -> Iterator[CheckView]:
    yield _open(settings, db, seal)
    if not db.is_sqlite:  # other servers may use it
        yield from _shared(settings, environ)


def _open(settings: Settings, db: Database, seal: Seal) -> CheckView:
    """With a probe, and with whatever a server has sealed before. Servers without secrets or nodes elsewhere need no
    key."""
    needed = any(engine.type in NEED_URL for engine in settings.engines.values())
    try:
        seal.unwrap(seal.wrap({"probe": "windlass doctor"}))
        with db.read() as tx:
            run_id = tx.execute(select(secrets.c.run_id).limit(1)).scalar()
            needed = needed or run_id is not None
            if run_id is not None:
                seal.open(tx, run_id)
    except WindlassError as error:
        status: Status = "fail" if needed else "warn"
        return CheckView(
            code="key.open", name="secret key", status=status, found=error.message, advice=error.hint or ""
        )
    return CheckView(code="key.open", name="secret key", status="ok", found="can seal and open secrets")


def _shared(settings: Settings, environ: Mapping[str, str]) -> Iterator[CheckView]:
    own = []
    if settings.secret_key_file is None and not environ.get(KEY_VARIABLE):
        own.append(f"the key (`server.secret_key_file` or {KEY_VARIABLE})")
    if settings.auth and settings.token_file is None and not environ.get("WINDLASS_TOKEN"):
        own.append("the token (`server.token_file` or WINDLASS_TOKEN)")
    if own:
        found = f"{' and '.join(own)} is in this server's own folder"
        yield CheckView(
            code="key.shared",
            name="secret key",
            status="warn",
            found=found,
            advice="fine for one server; several on one database need the same",
        )
