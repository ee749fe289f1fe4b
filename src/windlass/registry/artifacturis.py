"""Where the files of a model version are."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from windlass.core.storable import storable_text
from windlass.registry.naming import LARGEST_VERSION
from windlass.registry.tables import model_versions


def load_version_uri(tx: Connection, name: str, version: int) -> str | None:
    """None if there is no such version, or it has no files."""
    if not 0 < version <= LARGEST_VERSION:
        return None
    found = func.coalesce(func.nullif(model_versions.c.location, ""), model_versions.c.source)
    query = select(found).where(model_versions.c.name == storable_text(name), model_versions.c.version == version)
    return tx.execute(query).scalar()
