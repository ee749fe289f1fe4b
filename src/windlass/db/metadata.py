"""The one MetaData object that every capability hangs its tables on, and the column types they share."""

from __future__ import annotations

from sqlalchemy import JSON, Float, MetaData, String
from sqlalchemy.dialects import postgresql

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# Seconds since the epoch. Doubles go to both databases and back bit for bit.
Seconds = Float(53)
Json = JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
# Short ids are looked up as a range, which is right byte by byte only; a locale's order may pass over characters.
RunId = String(32).with_variant(String(32, collation="C"), "postgresql")
