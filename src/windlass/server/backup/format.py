"""What a backup looks like: a tar with these members, in this order. docs/deploy.md describes it for people.

windlass-backup.json       format, version, schema, time, what is in it
tables/NAME.jsonl.gz       a line with the columns, then a line per row
logs/ATTEMPT/NODE/NAME.gz  rank logs that lay in folders of this machine
blobs/DIGEST               as they are; their names are their checksums
blobs/artifacts/DIGEST     those of artifacts
secret.key                 only if asked for
checksums.json             sha256 of every other member but the blobs; without it the file is cut off
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from sqlalchemy import JSON, Boolean, Column, LargeBinary, Table

from windlass.core.errors import InvalidInput

FORMAT = 1
HEADER = "windlass-backup.json"
CHECKSUMS = "checksums.json"
SECRET_KEY = "secret.key"
TABLES, LOGS, BLOBS = "tables/", "logs/", "blobs/"
ARTIFACTS = "artifacts/"  # within BLOBS
# Told anew by migrations, or by whatever lives when a server starts.
LEFT_OUT = frozenset(
    ("alembic_version", "schema_readers", "leases", "nodes", "engines", "log_watches"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    windlass: str
    schema: str
    created_at: float
    blobs: bool
    secrets: bool
    format: int = FORMAT

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), indent=2).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Header:
        found = json.loads(data)
        if found.get("format") != FORMAT:
            raise InvalidInput(
                f"the backup has format {found.get('format')}; this version knows {FORMAT}",
                hint=f"it was made by Windlass {found.get('windlass')}: restore it with that version",
            )
        return cls(**found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checksums:
    """What the end of a backup says about the rest of it."""

    members: Mapping[str, str]  # sha256 by name
    rows: Mapping[str, int]  # by table
    blobs: int

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode()


def columns_line(table: Table) -> bytes:
    return json.dumps([column.name for column in table.columns]).encode() + b"\n"


def encode_row(row: Sequence[Any], columns: Sequence[Column[Any]]) -> bytes:
    values = [_plain(value, column) for value, column in zip(row, columns, strict=True)]
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def decode_row(line: bytes, columns: Sequence[Column[Any]]) -> dict[str, Any]:
    return {column.name: _valued(value, column) for value, column in zip(json.loads(line), columns, strict=True)}


def _plain(value: Any, column: Column[Any]) -> Any:
    """Numbers, text and JSON go as they are; bytes as base64. Doubles come back bit for bit."""
    if value is not None and isinstance(column.type, LargeBinary):
        return base64.b64encode(bytes(value)).decode()
    return value


def _valued(value: Any, column: Column[Any]) -> Any:
    if value is None or isinstance(column.type, JSON):
        return value
    if isinstance(column.type, LargeBinary):
        return base64.b64decode(value)
    return bool(value) if isinstance(column.type, Boolean) else value


def read_columns(stream: BinaryIO, table: Table) -> list[Column[Any]]:
    names = json.loads(stream.readline())
    if unknown := [name for name in names if name not in table.columns]:
        raise InvalidInput(f"the backup has a column {table.name}.{unknown[0]}, which its schema does not have")
    return [table.columns[name] for name in names]
